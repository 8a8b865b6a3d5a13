"""Ranks that torchrun starts in a container: the proxy in it, and the program on the host that runs each rank."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import REPOSITORY
from waits import until

PROXY = REPOSITORY / "bootstrap" / "node" / "containers" / "rank_proxy.py"
# Serves ranks with another command in place of `role launched`.
SERVE = """
import json, sys
from train.node.role import ranks
ranks.launched_words = lambda variables, *, python: json.loads(sys.argv[2])
ranks.serve("RANK,MASTER_", sys.argv[1])
"""


class Server:
    def __init__(self, path: str, command: list[str]) -> None:
        self.path = path
        words = [sys.executable, "-c", SERVE, path, json.dumps(command)]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, cwd=REPOSITORY, env={**os.environ, "OWN": "host"}
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def proxy(self, **env: str) -> "subprocess.Popen[str]":
        """Starts a proxy as torchrun does."""
        return subprocess.Popen(
            [sys.executable, str(PROXY), "RANK,MASTER_"],
            env={"CLUSTER_RANKS": self.path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:  # a socket's path is short
        yield Path(name)


@pytest.fixture
def serve(folder: Path) -> Iterator[object]:
    running: list[Server] = []

    def start(command: str) -> Server:
        running.append(Server(str(folder / "socket"), ["sh", "-c", command]))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.process.communicate()


def test_a_rank_gets_its_variables_and_output_and_returns_its_exit_code(serve: object) -> None:
    assert callable(serve)
    server = serve('echo "rank $RANK of $MASTER_ADDR on $OWN, not $OTHER"; echo said >&2; exit $((RANK + 3))')
    proxies = [server.proxy(RANK=str(rank), MASTER_ADDR="10.0.0.4", OTHER="x") for rank in range(3)]
    for rank, proxy in enumerate(proxies):
        out, said = proxy.communicate(timeout=20)
        assert (out, said) == (f"rank {rank} of 10.0.0.4 on host, not \n", "said\n")
        assert proxy.returncode == rank + 3


def test_a_rank_that_is_killed(serve: object) -> None:
    assert callable(serve)
    proxy = serve("kill -9 $$").proxy(RANK="0")
    proxy.communicate(timeout=20)
    assert proxy.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_ends_with_its_proxy(serve: object, folder: Path, number: signal.Signals) -> None:
    assert callable(serve)
    server = serve(f"trap 'echo ended >{folder}/ended; exit 1' TERM; echo ready; while :; do sleep 0.05; done")
    proxy = server.proxy(RANK="0")
    assert proxy.stdout.readline() == "ready\n"
    proxy.send_signal(number)
    proxy.communicate(timeout=20)
    until((folder / "ended").exists, "the rank gets SIGTERM")


def test_a_proxy_whose_host_program_is_killed(serve: object) -> None:
    assert callable(serve)
    server = serve("echo ready; exec sleep 1000")
    proxy = server.proxy(RANK="0")
    assert proxy.stdout.readline() == "ready\n"
    server.process.kill()
    _, said = proxy.communicate(timeout=20)
    assert proxy.returncode == 1
    assert "was killed" in said


def test_what_is_no_proxy_is_ignored(serve: object) -> None:
    assert callable(serve)
    server = serve("exit 4")
    for data in (b"", b"R", b"nonsense\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(server.path)
            connection.sendall(data)
    proxy = server.proxy(RANK="0")
    proxy.communicate(timeout=20)
    assert proxy.returncode == 4
