"""An MXNet wheel of the user's own: [bootstrap] mxnet = "PATH.whl", or its s3:// or https:// address."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bootstrap.environment.fetches import download
from bootstrap.environment.file_cache import BundleFile, fetch_once
from bootstrap.environment.target import is_wheel_file
from foundation.errors import ConfigError, NotFoundError
from foundation.progress import Report

WHEEL_NAME = re.compile(
    r"mxnet[A-Za-z0-9_.]*-[A-Za-z0-9_.!+]+(-[0-9][A-Za-z0-9_.]*)?-[a-z0-9_.]+-[a-z0-9_.]+-[a-z0-9_.]+\.whl"
)
"""https://packaging.python.org/en/latest/specifications/binary-distribution-format/"""


def find_own_wheel(
    setting: str, *, folder: Path, get_object: Callable[[str, Path], object], cache: Path, report: Report
) -> BundleFile | None:
    """The wheel that [bootstrap] mxnet names, in this machine's cache; None if it names no file.

    folder: that of cluster.toml. get_object: copies an object of S3 to a file. An address is fetched only once.
    Raises ConfigError, ClusterError.
    """
    if not is_wheel_file(setting):
        return None
    name = setting.rpartition("/")[2]
    if not WHEEL_NAME.fullmatch(name):
        raise ConfigError(
            f'[bootstrap] mxnet = "{setting}": {name} is not the name of an MXNet wheel',
            hint="rename it, such as to mxnet-1.7.0-1_cu112-py3-none-linux_x86_64.whl",
        )
    inputs: Sequence[object] = [setting]
    path = folder / Path(setting).expanduser()
    if "://" not in setting:
        try:
            status = path.stat()
        except OSError as error:
            raise NotFoundError(f'[bootstrap] mxnet = "{setting}": {path}: {error.strerror}') from error
        inputs = [str(path), status.st_size, status.st_mtime_ns]

    def fetch(directory: Path) -> None:
        if setting.startswith("s3://"):
            get_object(setting, directory / name)
        elif "://" in setting:
            download(setting, directory / name)
        else:
            shutil.copyfile(path, directory / name)

    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    what = f"fetching {setting} for the nodes"
    [file] = fetch_once(cache, f"own/{key}", fetch, what=what, report=report)
    return file
