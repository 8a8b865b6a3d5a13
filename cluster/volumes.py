"""The volumes of cluster.toml: every command that sets nodes up mounts them; they are unmounted before nodes end."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import try_on_all
from bootstrap.volumes.apply import mount_volumes, unmount_volumes
from cluster.app import App
from cluster.nodes.source import NodeSource
from foundation.errors import ClusterError
from provision.aws.iam_policy import render_volumes_policy
from provision.aws.s3_access import S3Access, find_s3_access
from provision.volumes.source import MountSource

CONNECT_S = 8.0
KEYS_S = 12 * 3600
"""The requested lifetime of the keys of s3:// volumes. Each command that sets nodes up renews them."""


def mount_all(app: App, nodes: Sequence[ReadyNode], sources: Sequence[MountSource]) -> frozenset[str]:
    """Mounts the volumes on all nodes, the head first. Returns the names of the nodes that were changed.

    Without volumes, as in most clusters, uses root only on nodes that still have some.
    Raises ClusterError, which names every node that failed.
    """
    if not sources:
        nodes = [node for node in nodes if node.facts.has_volumes]
    if not nodes:
        return frozenset()
    return mount_volumes(
        [node.connection for node in nodes],
        sources,
        s3=find_access(app, sources),
        report=app.report,
    )


def find_access(app: App, sources: Sequence[MountSource]) -> S3Access:
    """Returns the nodes' access to the buckets of s3:// volumes. Raises AwsError.

    The access is limited to the volumes, but an instance profile of the user's has the permissions that the user gave
    it.
    """
    of_s3 = [source for source in sources if source.kind == "s3"]
    if not of_s3:
        return S3Access(env={}, secrets={})
    config = app.config
    profile = config.provision.instance_profile if app.has_instances else "none"
    return find_s3_access(
        region=config.provision.region,
        instance_profile="none" if profile == "auto" else profile,
        cluster=config.name,
        policy=render_volumes_policy(of_s3, region=config.provision.region),
        max_duration_s=KEYS_S,
    )


def unmount_all(app: App, source: NodeSource) -> None:
    """Unmounts [[volumes]] on the running nodes, before they end or stop. Failures are warnings. Raises AwsError."""
    if not app.config.volumes:
        return
    nodes = source.describe()
    with ExitStack() as stack:

        def connect(name: str) -> NodeConnection:
            return stack.enter_context(closing(source.connect(nodes.find_host(name), wait_s=CONNECT_S)))

        found = []
        for name, reached in zip(nodes.running, try_on_all(nodes.running, connect), strict=True):
            if isinstance(reached, ClusterError):
                app.warn(f"volumes were not unmounted: {reached.message}", where=name)
            else:
                found.append(reached)
        unmount_volumes(found, report=app.report)
