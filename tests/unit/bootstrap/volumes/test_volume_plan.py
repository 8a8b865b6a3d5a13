"""How nodes mount volumes, and the steps on a node, if any."""

import pytest
from msgspec.structs import replace

from bootstrap.volumes.mount_plan import (
    MountPlan,
    VolumeFacts,
    note_of,
    plan_s3fs,
    plan_volumes,
    render_exports,
)
from job_world import NO_ACCESS, cpus
from provision.aws.s3_access import S3Access
from provision.volumes.source import MountSource

HOSTS = tuple(node.host for node in cpus(3))
HEAD = MountSource(kind="head", mount="/shared", source="head", volume_id="vol-1", instance_id="i-0", device="/dev/sdf")
NFS = MountSource(kind="nfs", mount="/data", source="nas:/export", server="nas", export="/export")
EFS = MountSource(
    kind="efs", mount="/efs", source="fs-0123abcd", server="fs-0123abcd.efs.us-east-1.amazonaws.com", export="/"
)
S3 = MountSource(kind="s3", mount="/s3", source="s3://bucket/a/b/", bucket="bucket", prefix="a/b/", region="us-east-1")
LUSTRE = MountSource(kind="lustre", mount="/fsx", source="fs-1", server="fs-1.fsx.aws", export="/abcdef")
UBUNTU = VolumeFacts(commands=(), uid=1000, gid=1000, noted={}, dead={})
ACCESS = S3Access(env={}, secrets={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}, left_s=1000.0)


def plan(
    *sources: MountSource, facts: VolumeFacts = UBUNTU, now: float = 0.0, **others: VolumeFacts
) -> dict[str, MountPlan]:
    """The plan for all hosts. others: the facts of single nodes, as in node_1=..."""
    found = {host.name: others.get(host.name.replace("-", "_"), facts) for host in HOSTS}
    return plan_volumes(sources, HOSTS, found, s3=ACCESS, now=now)


def test_the_disk_of_the_head() -> None:
    made = plan(HEAD)
    head, other = made["node-0"], made["node-1"]
    assert head.install == ("nfs-kernel-server",)
    assert other.install == ("nfs-common",)
    assert head.disks == (HEAD,)
    assert other.disks == ()
    assert head.mounts[0].words == ("mount", "-o", "bind", "/var/lib/cluster/volumes/shared", "/shared")
    options = "soft,timeo=20,retrans=2,retry=0,proto=tcp,nosuid,nodev,rw"
    there = "10.0.0.4:/var/lib/cluster/volumes/shared"
    assert other.mounts[0].words == ("mount", "-t", "nfs", "-o", options, there, "/shared")
    assert other.exports == {}
    assert render_exports(head.exports, ["10.0.0.6", "10.0.0.5"]) == (
        "/var/lib/cluster/volumes/shared 10.0.0.5(rw,sync,no_subtree_check) 10.0.0.6(rw,sync,no_subtree_check)\n"
    )


def test_efs_and_lustre() -> None:
    [mount] = plan(EFS)["node-1"].mounts
    assert "nfsvers=4.1,rsize=1048576,wsize=1048576,noresvport" in mount.words[4]
    assert mount.words[5] == f"{EFS.server}:/"
    assert mount.server == "fs-0123abcd.efs.us-east-1.amazonaws.com (fs-0123abcd)"
    assert mount.how == "nfs"
    words = plan(LUSTRE)["node-1"].mounts[0].words
    assert words[-2:] == ("fs-1.fsx.aws@tcp:/abcdef", "/fsx")


def test_a_node_may_be_the_host_of_an_export() -> None:
    for server in ("node-1", "10.0.0.5"):
        made = plan(replace(NFS, server=server))
        assert made["node-1"].mounts[0].how == "bind"
        assert made["node-0"].mounts[0].how == "nfs"
        assert made["node-0"].exports == {}


def test_a_bucket_by_the_nodes_instance_profile() -> None:
    assert "iam_role=auto" in plan_s3fs(S3, S3Access(env={}, secrets={}, of_nodes=True), uid=1, gid=1).words[-1]


@pytest.mark.parametrize(
    ("bucket", "region", "url", "has_own_name"),
    [
        ("bucket", "us-east-1", "https://s3.us-east-1.amazonaws.com", True),
        ("my.bucket", "us-east-1", "https://s3.us-east-1.amazonaws.com", False),
        ("bucket", "cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn", True),
    ],
)
def test_where_s3fs_finds_a_bucket(bucket: str, region: str, url: str, *, has_own_name: bool) -> None:
    source = replace(S3, bucket=bucket, region=region)
    options = plan_s3fs(source, NO_ACCESS, uid=1, gid=1).words[-1].split(",")
    assert f"url={url}" in options
    assert ("use_path_request_style" not in options) == has_own_name


def noted(*sources: MountSource, now: float) -> VolumeFacts:
    mounts = plan(*sources)["node-1"].mounts
    notes = {mount.source.mount: note_of(mount, now=now) for mount in mounts}
    return replace(UBUNTU, noted=notes, commands=("mount.nfs4", "s3fs"))


def test_what_differs_is_mounted_again() -> None:
    here = noted(HEAD, S3, now=0.0)
    read_only = plan(replace(HEAD, read_only=True), S3, node_1=here)["node-1"]
    assert read_only.unmount == ("/shared",)
    assert [mount.source.mount for mount in read_only.mounts] == ["/shared"]
    dead = plan(HEAD, S3, node_1=replace(here, dead={"/s3": "no answer for 7 s"}))
    assert dead["node-1"].unmount == ("/s3",)
    rebooted = plan(HEAD, S3, node_1=replace(here, noted={}))
    assert len(rebooted["node-1"].mounts) == 2
    gone = plan(HEAD, node_1=here)
    assert gone["node-1"].unmount == ("/s3",)
    assert gone["node-1"].mounts == ()


def test_keys_of_s3_are_renewed_after_half_of_their_time() -> None:
    here = noted(S3, now=0.0)
    assert plan(S3, node_1=here, now=400.0)["node-1"].renew == ()
    made = plan(S3, node_1=here, now=600.0)["node-1"]
    assert made.renew == ("/s3",)
    assert made.unmount == ()
    assert [mount.source.mount for mount in made.mounts] == ["/s3"]
