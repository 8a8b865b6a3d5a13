"""[[volumes]] of cluster.toml: accepted and rejected values, and the volumes that nodes mount."""

from typing import Any

import pytest

from foundation.errors import ConfigError
from foundation.settings import check
from provision.volumes.config import VolumeConfig, find_conflicts
from provision.volumes.source import MountSource, plan_mount


def make(**table: Any) -> VolumeConfig:
    return check(VolumeConfig, {"mount": "/shared", "source": "head", **table}, source="cluster.toml")


def test_accepts() -> None:
    """A mount and a source are normalized."""
    assert make(mount="/shared/").mount == "/shared"
    for source, normal in (("fs-0123abcd", "fs-0123abcd"), ("s3://bucket", "s3://bucket/"), ("nas:/a/", "nas:/a")):
        assert make(source=source).source == normal


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"mount": "shared"}, 'mount = "shared": must be an absolute path'),
        ({"mount": "/$(reboot)"}, "must be an absolute path"),
        ({"mount": "/home/ubuntu/.ssh"}, "must be an absolute path"),
        ({"mount": "/usr/local/data"}, "/usr belongs to the system"),
        ({"mount": "/mnt/"}, "would hide what is in /mnt"),
        (
            {"mount": "/home/ubuntu"},
            'would hide a home folder; choose a folder below it, such as "/home/ubuntu/shared"',
        ),
        ({"source": "heads"}, 'source = "heads": must be "head" (a new disk on the head), "fs-..."'),
        ({"source": "s3://bucket/a b"}, "must be"),
        ({"source": "-oProxyCommand=x:/a"}, "must be"),
        ({"source": "nas:/a,rw"}, "must be"),
        (
            {"source": "fs-0123abcd", "keep": True},
            'keep is for source = "head"; "fs-0123abcd" exists already, and is neither changed nor deleted',
        ),
        ({"source": "nas:/a", "size_gib": 100}, 'size_gib is for source = "head"'),
        ({"read_only": True}, 'read_only = true with source = "head" needs keep = true: a new disk is empty'),
    ],
)
def test_rejects(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make(**table)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("pairs", "in_ec2", "messages"),
    [
        ([("/a", "head"), ("/b", "fs-0123abcd"), ("/c", "s3://bucket"), ("/d", "nas:/d")], True, []),
        ([("/a", "nas:/a"), ("/ab", "nas:/b")], True, []),
        (
            [("/a", "head"), ("/b", "head")],
            True,
            ['[[volumes]] source = "head" appears 2 times (/a, /b); a cluster has one such volume'],
        ),
        ([("/a", "nas:/a"), ("/a/", "nas:/b")], True, ['[[volumes]] mount = "/a" appears twice']),
        (
            [("/a", "nas:/a"), ("/a/b/c", "nas:/b")],
            True,
            ['[[volumes]] mount = "/a/b/c" and mount = "/a": one would be in the other'],
        ),
        (
            [("/a", "nas:/a"), ("/b", "fs-0123abcd")],
            False,
            [
                (
                    'volumes[1].source = "fs-0123abcd": needs instances of EC2; with cloud = "hosts", use '
                    '"HOST:/export" or "s3://..."'
                )
            ],
        ),
    ],
)
def test_conflicts_between_volumes(pairs: list[tuple[str, str]], *, in_ec2: bool, messages: list[str]) -> None:
    volumes = [make(mount=mount, source=source) for mount, source in pairs]
    assert list(find_conflicts(volumes, in_ec2=in_ec2)) == messages


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
