"""MXNet saves to s3:// through hook.py: the real MXNet, against moto's S3."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import REPOSITORY
from real_mxnet import VERSION, real_mxnet
from s3_server import REGION, S3Server, serve_s3_alone

BUCKET = "models"
PROGRAM = REPOSITORY / "tests" / "support" / "on_nodes" / "saves_on_a_node.py"
OTHER_VERSIONS = ("1.5.1.post0", "1.6.0", "1.8.0.post0", "1.9.1")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put(BUCKET, {})
        yield server


def run(
    server: S3Server, cache: Path, program: str, *words: str, version: str = VERSION, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program with MXNet as a worker of a job whose data is staged."""
    given = {
        "PYTHONPATH": str(REPOSITORY / "node" / "setup" / "startup"),
        "CLUSTER_MXNET_HOOK": str(REPOSITORY / "node" / "staging" / "hook.py"),
        "CLUSTER_PYTHON": sys.executable,  # the worker's own Python has no obstore
        "CLUSTER_DATA_CACHE_DIR": str(cache),
        "S3_REGION": REGION,
        "AWS_ENDPOINT_URL": server.url,
    }
    return subprocess.run(
        [real_mxnet(version), "-W", "ignore", "-c", f"import _cluster_compat\n{program}", *words],
        env=os.environ | given | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    "version", [VERSION, *(pytest.param(version, marks=pytest.mark.slow) for version in OTHER_VERSIONS)]
)
def test_everything_mxnet_saves(server: S3Server, tmp_path: Path, version: str) -> None:
    done = run(server, tmp_path, PROGRAM.read_text(), f"s3://{BUCKET}/{version}/", version=version)
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("SAVED ") for line in done.stdout.splitlines()]
    assert len(said) == PROGRAM.read_text().count("report(") - 1 + len(["nd.save 2"])
    assert [line for line in said if not line.endswith(" ok")] == []
    saved = [key.removeprefix(f"{version}/") for key in server.read(BUCKET) if key.startswith(f"{version}/")]
    assert {"module-symbol.json", "module-0001.params", "module-0001.states", "unclosed.rec"} <= set(saved)
    assert server.read(BUCKET)[f"{version}/unclosed.rec"].endswith(b"the last record\0")


FAILS = """
import mxnet as mx, sys
unclosed = mx.recordio.MXRecordIO(sys.argv[1] + "unclosed.rec", "w")
unclosed.write(b"half of it")
try:
    mx.nd.save(sys.argv[1] + "arrays", [mx.nd.ones(1)])
except mx.base.MXNetError as error:
    print(error)
    raise
"""


def test_a_failed_upload_fails_the_script(server: S3Server, tmp_path: Path) -> None:
    before = server.read(BUCKET)
    with server.caller_who_may("s3:GetObject", "s3:ListBucket") as (key, secret):
        keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        done = run(server, tmp_path, FAILS, f"s3://{BUCKET}/refused/", **keys)
    assert done.returncode == 1
    assert done.stdout.startswith(f"s3://{BUCKET}/refused/arrays: S3 refuses: 403 AccessDenied")
    assert server.read(BUCKET) == before
    assert list((tmp_path / "users").iterdir()) == []


FULL_DISK = """
import mxnet as mx, os, sys
folder, url = sys.argv[1:]
mx.nd.save(url, [mx.nd.ones(10)])
mx.nd.save(folder + "/fills", [mx.nd.ones(10)])  # so that its size is known
head = os.path.getsize(folder + "/fills") - 40
room = os.statvfs(folder)
tail = mx.nd.ones((room.f_bavail * room.f_frsize - head) // 4 + 5)  # the last 20 bytes have no room
mx.nd.save(folder + "/local", [tail])
print("written as if there were room:", os.path.getsize(folder + "/local") % 4096)
os.remove(folder + "/local")
mx.nd.save(url, [tail])
"""


@pytest.mark.sandbox
def test_a_truncated_file_is_not_uploaded(server: S3Server, tmp_path: Path) -> None:
    """MXNet ignores errors of fclose, so the end of a file, which C buffers until then, can be missing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk), check=True)
    try:
        done = run(server, disk, FULL_DISK, str(disk), f"s3://{BUCKET}/full")
    finally:
        subprocess.run(("umount", disk), check=True)
    assert "written as if there were room: 0" in done.stdout, done.stderr
    assert done.returncode == 1
    assert f"the disk of {disk} is full: use a larger volume" in done.stderr
    assert len(server.read(BUCKET)["full"]) < 1000  # the file that was saved before
