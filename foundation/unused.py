"""Packages that libraries import wherever they are installed, and that this program uses rarely or never."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_STAND_INS = {
    "invoke.vendor.yaml": {},
    "unittest.mock": {"Mock": object},
    "multiprocessing.managers": {"BaseManager": object},
}


def skip_unused() -> None:
    """Makes these packages look missing or empty. Call this before boto3 and Fabric are imported.

    awscrt, of botocore: only the sessions of `aws login` need it. Its import takes 0.08 s, a tenth of the CPU time of
    `cluster train`. YAML, of invoke: it reads configuration files, which this program keeps Fabric from looking for.
    The other two, of invoke and s3transfer, are for tests and for pools of processes, and import much of Python.
    """
    config = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    text = b""
    with suppress(OSError, RuntimeError):  # botocore reports what cannot be read; there may be no home
        text = config.read_bytes()
    if b"login_session" not in text:
        # As documented, an import of None raises ModuleNotFoundError.
        sys.modules.setdefault("awscrt", None)  # type: ignore[arg-type]
    for name, content in _STAND_INS.items():
        stand_in = ModuleType(name)
        vars(stand_in).update(content)
        sys.modules.setdefault(name, stand_in)
