"""What `cluster verify` reports about volumes, on nodes that are this host."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host, Output
from bootstrap.verify.volumes import check_volumes
from foundation.remote_command import RemoteCommand
from local_nodes import local_node
from provision.volumes.source import MountSource


class Shell(NodeConnection):
    """Runs commands on this host; those that begin with `broken` fail."""

    def __init__(self, host: Host, *, broken: str = "") -> None:
        self.host = host
        self.broken = broken

    def run(self, command: RemoteCommand, **_: Any) -> Output:
        if self.broken and command.text.startswith(self.broken):
            return Output(stdout="an older text", stderr="", exit_code=0)
        done = subprocess.run(command.here(), capture_output=True, text=True, check=True)
        return Output(stdout=done.stdout, stderr=done.stderr, exit_code=done.returncode)


@pytest.mark.parametrize(
    ("broken", "status", "message"),
    [("", "ok", "written by node-0, read by node-1, node-2"), ("cat", "failed", "it cannot be written and read")],
)
def test_a_volume_is_written_and_read(tmp_path: Path, broken: str, status: str, message: str) -> None:
    hosts = [local_node(index).host for index in range(3)]
    connections = [Shell(host, broken=broken if host.name == "node-2" else "") for host in hosts]
    nodes = [local_node(index, connection) for index, connection in enumerate(connections)]
    source = MountSource(kind="head", mount=str(tmp_path), source="head")
    (check,) = check_volumes(nodes, [source])
    assert (check.status, check.result) == (status, message)
    assert ("node-2" in (check.cause or "")) == bool(broken)
    assert not list(tmp_path.iterdir())


def test_a_read_only_volume_is_not_written() -> None:
    (check,) = check_volumes([], [MountSource(kind="nfs", mount="/data", source="x:/data", read_only=True)])
    assert check.status == "unchecked"
