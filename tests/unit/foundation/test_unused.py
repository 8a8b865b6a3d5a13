import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = """
from foundation.unused import skip_unused
skip_unused()
from botocore.compat import HAS_CRT
import fabric, sys
fabric.Connection("host", config=fabric.Config(lazy=True))
import boto3
print(HAS_CRT, not {"yaml", "asyncio", "multiprocessing"}.isdisjoint(sys.modules))
"""


@pytest.mark.parametrize(
    ("text", "is_imported"),
    [
        ("[default]\nregion = us-east-1\n", False),
        ("[default]\n[profile work]\nlogin_session = arn:aws:iam::123456789012:user/me\n", True),
    ],
)
def test_awscrt_is_for_login_sessions_others_never(tmp_path: Path, *, text: str, is_imported: bool) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    environment = {"AWS_CONFIG_FILE": str(config), "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", IMPORTS]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == f"{is_imported} False\n"
