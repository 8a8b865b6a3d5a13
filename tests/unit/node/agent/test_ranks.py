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

from node.agent import ranks
from project import REPOSITORY
from waits import until

PROXY = REPOSITORY / "node" / "setup" / "containers" / "rank_proxy.py"
VARIABLES = "RANK,MASTER_ADDR"
CONTAINER = "cluster-20261127-120000-000000-1-0"
# Serves ranks with another command in place of `role launched`; its $0 is the rank's variables.
SERVE = """
import json, sys
from node.agent import ranks
ranks.launched_words = lambda variables, given, *, python: [*json.loads(sys.argv[1]), given]
ranks.serve(*sys.argv[2:])
"""


class Server:
    def __init__(self, path: str, command: list[str]) -> None:
        self.path = path
        words = [sys.executable, "-c", SERVE, json.dumps(command), VARIABLES, CONTAINER, path]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, cwd=REPOSITORY, env={**os.environ, "OWN": "host"}
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def proxy(self, *before: str, program: str = str(PROXY), **env: str) -> "subprocess.Popen[str]":
        """Starts a proxy as torchrun does. before: a command that starts it."""
        return subprocess.Popen(
            [*before, sys.executable, program, VARIABLES],
            env={"CLUSTER_RANKS": self.path, "CLUSTER_CONTAINER": CONTAINER, **env},
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
    server = serve('echo "$0"; echo "$OWN, not $RANK" >&2; exit 3')
    proxies = [server.proxy(RANK=str(rank), MASTER_ADDR="10.0.0.4", OTHER="x") for rank in range(3)]
    for rank, proxy in enumerate(proxies):
        out, said = proxy.communicate(timeout=20)
        assert (json.loads(out), said) == ({"RANK": str(rank), "MASTER_ADDR": "10.0.0.4"}, "host, not \n")
        assert proxy.returncode == 3


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (
            {"LD_PRELOAD": "/evil.so", "PATH": "/evil", "PYTHONPATH": "/evil", "HOME": "/evil", "RANK": "1"},
            {"RANK": "1"},
        ),
        ({"RANKS": "0", "RANK_": "0", "MASTER_ADDRESS": "x", "rank": "0"}, {}),
        ({"RANK": "1\n2"}, None),
        ({"RANK": "\0"}, None),
        ({"RANK": "9" * 5000}, None),
        ({"RANK": ["--privileged"]}, None),
        (["RANK"], None),
        (None, None),
    ],
)
def test_the_variables_that_leave_a_container(sent: object, taken: dict[str, str] | None) -> None:
    """taken: None if the connection is refused."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "w") as out:
        socket.send_fds(theirs, [b"R"], [out.fileno(), out.fileno()])
        theirs.sendall(json.dumps(sent).encode() + b"\n")
        if taken is None:
            with pytest.raises(ValueError, match=r"torchrun|Expected|Invalid"):
                ranks.receive(ours, VARIABLES.split(","))
            return
        found, descriptors = ranks.receive(ours, VARIABLES.split(","))
        for descriptor in descriptors:
            os.close(descriptor)
        assert found == taken


@pytest.mark.parametrize("whose", ["another program", "another container"])
def test_only_a_proxy_in_the_launchers_container_is_served(serve: object, folder: Path, whose: str) -> None:
    """Even if it has the container's variable, and reaches the socket by /proc/PID/root of a process in it."""
    assert callable(serve)
    server = serve("echo served; exec sleep 1000")
    proxy = server.proxy(RANK="0")
    assert proxy.stdout.readline() == "served\n"
    copy = folder / "rank_proxy.py"
    copy.write_bytes(PROXY.read_bytes())
    if whose == "another container":
        stranger = server.proxy("unshare", "--user", "--mount", RANK="1")
    else:
        stranger = server.proxy(program=str(copy), RANK="1")
    out, said = stranger.communicate(timeout=20)
    assert out == ""
    if "unshare" in said:
        pytest.skip(said)  # where users may not create namespaces
    assert stranger.returncode == 1
    proxy.kill()
    proxy.communicate()


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
