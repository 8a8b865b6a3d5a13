"""The disk of a node for data of S3."""

import shutil
from pathlib import Path

import pytest

from node.staging import cache

MOUNTS = """\
/dev/nvme0n1p1 / ext4 rw 0 0
proc /proc proc rw 0 0
/dev/nvme1n1 {0}/ebs ext4 rw 0 0
/dev/nvme2n1p1 {0}/own xfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    """A file of mounts: the root volume, another EBS volume, and a local disk of the instance."""
    for name in ("ebs", "own"):
        (tmp_path / name).mkdir()
    for name, model in (("nvme0n1", "Amazon Elastic Block Store"), ("nvme1n1", "Amazon Elastic Block Store")):
        (tmp_path / name).write_text(f"{model}\n")
    (tmp_path / "nvme2n1").write_text("Amazon EC2 NVMe Instance Storage        \n")
    (tmp_path / "mounts").write_text(MOUNTS.format(tmp_path))
    return str(tmp_path / "mounts")


def test_find_the_instances_own_disk(mounts: str, tmp_path: Path) -> None:
    assert cache.find_instance_stores(mounts, model=f"{tmp_path}/{{}}") == [f"{tmp_path}/own"]


@pytest.mark.parametrize("kind", ["link", "open to others"])
def test_unsafe_folders_are_not_used(tmp_path: Path, kind: str) -> None:
    """Jobs train with the content of the folder, and it is deleted when the disk is full."""
    elsewhere, objects = tmp_path / "elsewhere", tmp_path / "cache" / "objects"
    elsewhere.mkdir()
    objects.parent.mkdir()
    if kind == "link":
        objects.symlink_to(elsewhere)
    else:
        objects.mkdir()
        objects.chmod(0o777)
    with pytest.raises(OSError, match="others may write to it: set"):
        cache.Cache(str(tmp_path / "cache"), 1 << 30)


def test_find_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    for total, free, held, limit in (
        (1000, 400, 100, 450),  # a reserve of 5 % of the disk
        (20, 10, 3, 11),  # a reserve of 2 GiB
        (20, 2, 0, 1),  # a reserve of half of the free space
    ):
        usage = shutil._ntuple_diskusage(total * gib, (total - free) * gib, free * gib)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert cache.find_limit({}, str(tmp_path), held * gib) == limit * gib
        given = {"CLUSTER_DATA_CACHE_GIB": "12.5"}  # also limited by the free space
        assert cache.find_limit(given, str(tmp_path), held * gib) == min(12.5, held + free) * gib
