"""Hosts that share a home folder are found by a marker file, and take turns."""

import subprocess
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from bootstrap.homes import Turns, find_homes
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Output
from foundation.errors import ConnectError
from foundation.remote_command import RemoteCommand


class Shell:
    """A connection to a host whose home folder is here; its commands are run by this machine's shell."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, command: RemoteCommand, **_: Any) -> Output:
        if self.home.name == "lost":
            raise ConnectError("lost")
        done = subprocess.run(command.here(), env={"HOME": str(self.home)}, capture_output=True, text=True, check=False)
        return Output(stdout=done.stdout, stderr=done.stderr, exit_code=done.returncode)


def find(*homes: Path) -> tuple[tuple[int, ...], ...]:
    return find_homes([cast("NodeConnection", Shell(home)) for home in homes])


def test_hosts_with_one_home_are_found(tmp_path: Path) -> None:
    shared, own, unwritable = tmp_path / "shared", tmp_path / "own", Path("/proc/none")
    assert find(shared, own, shared, unwritable, tmp_path / "lost") == ((0, 2), (1,), (3,), (4,))
    assert find(own, shared, shared) == ((0,), (1, 2))
    assert find(own) == ((0,),)


def test_hosts_of_one_home_take_turns() -> None:
    turns, order = Turns([("a", "b"), ("c",)]), list[str]()

    def take(name: str) -> None:
        with turns.taken(name):
            order.append(name)

    second = threading.Thread(target=take, args=("b",))
    second.start()
    take("c")

    def fail() -> None:
        with turns.taken("a"):
            second.join(0.05)
            order.append("a")
            take("no such host")

    with pytest.raises(KeyError):  # a failure, too, ends the turn
        fail()
    second.join(5)
    assert order == ["c", "a", "no such host", "b"]
