from typing import Any

import pytest

from foundation.errors import ConfigError
from foundation.settings import check
from provision.volumes.config import VolumeConfig, find_conflicts
from provision.volumes.source import MountSource, plan_mount


def make(**table: Any) -> VolumeConfig:
    return check(VolumeConfig, {"mount": "/shared", "source": "head", **table}, source="cluster.toml")


def test_accepts() -> None:
    assert make(mount="/shared/").mount == "/shared"
    for source, normal in (("fs-0123abcd", "fs-0123abcd"), ("s3://bucket", "s3://bucket/"), ("nas:/a/", "nas:/a")):
        assert make(source=source).source == normal


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"mount": "shared"}, 'mount = "shared": must be an absolute path'),
        ({"mount": "/$(reboot)"}, "must be an absolute path"),
        ({"mount": "/usr/local/data"}, "/usr belongs to the system"),
        ({"mount": "/mnt/"}, "would hide what is in /mnt"),
        ({"mount": "/home/ubuntu"}, 'choose a folder below it, such as "/home/ubuntu/shared"'),
        ({"source": "heads"}, 'source = "heads": must be "head" (a new disk on the head), "fs-..."'),
        ({"source": "-oProxyCommand=x:/a"}, "must be"),
        ({"source": "nas:/a,rw"}, "must be"),
        ({"source": "fs-0123abcd", "keep": True}, 'keep is for source = "head"; "fs-0123abcd" exists already'),
        ({"read_only": True}, 'read_only = true with source = "head" needs keep = true: a new disk is empty'),
    ],
)
def test_rejects(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make(**table)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("pairs", "in_ec2", "message"),
    [
        ([("/a", "head"), ("/b", "fs-0123abcd"), ("/c", "s3://bucket"), ("/d", "nas:/d")], True, None),
        ([("/a", "nas:/a"), ("/ab", "nas:/b")], True, None),
        ([("/a", "head"), ("/b", "head")], True, '[[volumes]] source = "head" appears 2 times (/a, /b)'),
        ([("/a", "nas:/a"), ("/a/", "nas:/b")], True, '[[volumes]] mount = "/a" appears twice'),
        ([("/a", "nas:/a"), ("/a/b/c", "nas:/b")], True, '[[volumes]] mount = "/a/b/c" and mount = "/a": one would'),
        ([("/a", "nas:/a"), ("/b", "fs-0123abcd")], False, 'volumes[1].source = "fs-0123abcd": needs instances of'),
    ],
)
def test_conflicts_between_volumes(pairs: list[tuple[str, str]], *, in_ec2: bool, message: str | None) -> None:
    found = list(find_conflicts([make(mount=mount, source=source) for mount, source in pairs], in_ec2=in_ec2))
    assert len(found) == (message is not None)
    assert message is None or found[0].startswith(message)


def test_what_nodes_mount() -> None:
    volumes = (
        make(mount="/bucket", source="s3://bucket/a/b"),
        make(mount="/whole", source="s3://whole"),
        make(mount="/nas", source="nas:/export/a"),
    )
    found = tuple(plan_mount(volume, region="us-east-1") for volume in volumes)
    assert found == (
        MountSource(
            kind="s3", mount="/bucket", source="s3://bucket/a/b/", bucket="bucket", prefix="a/b/", region="us-east-1"
        ),
        MountSource(kind="s3", mount="/whole", source="s3://whole/", bucket="whole", region="us-east-1"),
        MountSource(kind="nfs", mount="/nas", source="nas:/export/a", server="nas", export="/export/a"),
    )
