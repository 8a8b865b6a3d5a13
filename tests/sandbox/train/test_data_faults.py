"""`put` and `get` with the sandbox's faults of S3: changed bytes, cut connections, a busy S3."""

import random
from pathlib import Path

import boto3
import pytest

from foundation.errors import ClusterError
from foundation.progress import silent
from sandbox import control
from sandbox_steps import REGION, RunningSandbox
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES, SMALL_BYTES

pytestmark = pytest.mark.sandbox

URL = "s3://transfers/x"
# Transferred by the fast ways, by botocore in one request, and in parts.
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


def put(path: Path) -> None:
    s3.put([str(path)], URL, region=REGION, report=silent)


def get(path: Path) -> None:
    s3.get([URL], str(path), region=REGION)


def read_stored() -> bytes:
    content: bytes = boto3.client("s3").get_object(Bucket="transfers", Key="x")["Body"].read()
    return content


def find_stored() -> list[str]:
    return [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket="transfers").get("Contents", [])]


@pytest.mark.parametrize(
    "fault", ["s3-flip at_byte=700", "s3-cut after_bytes=700", "s3-503"], ids=lambda text: text[:7]
)
@pytest.mark.parametrize("size", SIZES)
def test_what_happens_once_is_made_good(phantom: RunningSandbox, local: Path, size: str, fault: str) -> None:
    content = random.Random(8).randbytes(SIZES[size])
    local.write_bytes(content)
    arm(phantom, f"{fault} operation={UP[size]} key=x")
    put(local)
    assert not control.list_faults(phantom.project_dir)  # it has struck
    assert read_stored() == content

    arm(phantom, f"{fault} operation=GetObject key=x")
    back = local.parent / "back"
    get(back)
    assert not control.list_faults(phantom.project_dir)
    assert back.read_bytes() == content
    assert sorted(path.name for path in local.parent.iterdir()) == ["back", "x"]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_always_another_is_an_error_and_no_object(phantom: RunningSandbox, local: Path, size: str) -> None:
    content = random.Random(9).randbytes(SIZES[size])
    local.write_bytes(content)
    arm(phantom, f"s3-flip operation={UP[size]} key=x at_byte=700 count=all")
    with pytest.raises(ClusterError, match="1 of 1 files failed"):
        put(local)
    assert not find_stored()

    control.disarm_faults(phantom.project_dir, "all")
    put(local)
    assert read_stored() == content
    arm(phantom, "s3-flip operation=GetObject key=x at_byte=700 count=all")
    with pytest.raises(ClusterError, match="do not match S3's own checksum"):
        get(local.parent / "back")
    assert not (local.parent / "back").exists()
    control.disarm_faults(phantom.project_dir, "all")
    get(local.parent / "back")
    assert (local.parent / "back").read_bytes() == content
