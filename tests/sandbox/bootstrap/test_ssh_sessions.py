"""An ssh session on a node whose client has died."""

import json
import os
import pty
import select
import signal
import subprocess
import uuid

import pytest

from project import CLUSTER, Project
from sandbox_steps import find_sleepers
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

TIMEOUT_S = 60


def read_until(terminal: int, word: bytes) -> None:
    shown = b""
    while word not in shown:
        assert select.select([terminal], [], [], TIMEOUT_S)[0], shown
        shown += os.read(terminal, 4096)


def test_a_session_ends_after_its_client_died_during_a_freeze(two_nodes: Project) -> None:
    """The frozen node misses the client's end: a client killed with unread bytes sends a reset only once."""
    node = json.loads(two_nodes.run("status", "--json").stdout)["nodes"][1]
    token = f"98765.{uuid.uuid4().int % 10**9}"
    master, slave = pty.openpty()
    with subprocess.Popen(
        [CLUSTER, "ssh", "node-1"],
        cwd=two_nodes.directory,
        env={**two_nodes.environment(), "TERM": "dumb"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as client:
        try:
            os.write(master, f"echo be''gun; sleep 2; echo unread; exec sleep {token}\n".encode())
            read_until(master, b"begun")
            os.killpg(client.pid, signal.SIGSTOP)
            until(lambda: find_sleepers(token), "it does not reach its last command")
            two_nodes.run("sandbox", "fault", "freeze", f"instance={node['instance_id']}")
        finally:
            os.killpg(client.pid, signal.SIGKILL)
            os.close(slave)
            os.close(master)
    two_nodes.run("sandbox", "fault", "thaw", f"instance={node['instance_id']}")
    until(lambda: not find_sleepers(token), "its session still runs")
