"""`put` and `get` over a connection that is cut."""

import random
from pathlib import Path

import boto3
import pytest

from ec2_sandbox import control
from foundation.progress import silent
from sandbox_steps import REGION, RunningSandbox
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES, SMALL_BYTES

pytestmark = pytest.mark.sandbox

URL = "s3://transfers/x"
# In one request, and in parts.
SIZES = {"small": 1000, "middle": SMALL_BYTES + 1, "large": PART_BYTES + 1000}
UP = {"small": "PutObject", "middle": "PutObject", "large": "UploadPart"}


@pytest.fixture
def local(phantom: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a file. The bucket exists, and unfinished transfers are recorded below tmp_path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="transfers")
    client.delete_object(Bucket="transfers", Key="x")
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "x"


def arm(sandbox: RunningSandbox, text: str) -> None:
    control.disarm_faults(sandbox.project_dir, "all")
    control.cause_fault(sandbox.project_dir, text)


@pytest.mark.parametrize("size", SIZES)
def test_a_cut_connection_is_made_good(phantom: RunningSandbox, local: Path, size: str) -> None:
    content = random.Random(8).randbytes(SIZES[size])
    local.write_bytes(content)
    arm(phantom, f"s3-cut after_bytes=700 operation={UP[size]} key=x")
    s3.put([str(local)], URL, region=REGION, report=silent)
    assert not control.list_faults(phantom.project_dir)  # it has struck
    assert boto3.client("s3").get_object(Bucket="transfers", Key="x")["Body"].read() == content
    arm(phantom, "s3-cut after_bytes=700 operation=GetObject key=x")
    back = local.parent / "back"
    s3.get([URL], str(back), region=REGION)
    assert not control.list_faults(phantom.project_dir)
    assert back.read_bytes() == content
    assert sorted(path.name for path in local.parent.iterdir()) == ["back", "x"]
