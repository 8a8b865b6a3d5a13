"""Files from node to node: real agents, real sockets, real kills."""

import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_steps import SECRET, RawAgent, StartAgent, digest_of, entry, hold, start_agent
from waits import until

__all__ = ["start_agent"]

FRAME = 1 << 18
SOME = random.Random(1).randbytes(3 * FRAME + 17)
Start = Callable[..., RawAgent]


@pytest.fixture
def start(tmp_path: Path, start_agent: StartAgent) -> Start:
    """A function that starts an agent and waits until it listens. Agents with the same number share a home."""
    return lambda number, *files, **options: start_agent(
        tmp_path / str(number), *files, address=f"127.0.0.{number}", **options
    ).listen()


def holder(start: Start, number: int, tmp_path: Path, *contents: bytes) -> RawAgent:
    """Starts a node that has these files."""
    for data in contents:
        hold(tmp_path / str(number), data)
    agent = start(number)
    agent.expect("done")
    return agent


def test_a_file_passes_from_node_to_node(start: Start) -> None:
    first, second, third = (start(number, entry(SOME)) for number in (1, 2, 3))
    third.take_from(second.peer, first.peer)
    second.take_from(first.peer)
    first.take_from()
    assert first.expect("stuck") == digest_of(SOME)
    first.upload(SOME)
    for agent in (first, second, third):
        agent.expect("done")
        assert agent.path(SOME).read_bytes() == SOME
        assert not list((agent.home / ".cluster" / "incoming").iterdir())


def test_a_damaged_partial_file_is_replaced(start: Start, tmp_path: Path) -> None:
    """Another node replaces it, or the user's machine if there is no other node."""
    kept = len(SOME) // 2
    source = holder(start, 1, tmp_path, SOME)
    for number in (2, 3):
        folder = tmp_path / str(number) / ".cluster" / "incoming"
        folder.mkdir(parents=True)
        (folder / digest_of(SOME)).write_bytes((b"damaged" * len(SOME))[:kept])
    taker, alone = start(2, entry(SOME)), start(3, entry(SOME))
    taker.take_from(source.peer)
    taker.expect("stuck")
    taker.take_from(source.peer)
    taker.expect("done")
    assert taker.path(SOME).read_bytes() == SOME
    alone.take_from()
    alone.expect("stuck")
    alone.upload(SOME, offset=kept)
    alone.expect("stuck")
    alone.upload(SOME)
    alone.expect("done")
    assert alone.path(SOME).read_bytes() == SOME


def test_a_node_without_the_secret_gets_nothing(start: Start, tmp_path: Path) -> None:
    source = holder(start, 1, tmp_path, SOME)
    stranger = start(2, entry(SOME), secret="00" * 32)
    stranger.take_from(source.peer)
    assert stranger.expect("stuck") == digest_of(SOME)
    assert stranger.arrived_bytes(SOME) == 0
    with socket.create_connection(source.peer) as connection:
        connection.settimeout(5)
        nonce = connection.recv(32)
        connection.sendall(nonce + nonce)
        assert connection.recv(1) == b""  # closed without a proof or any content


def test_a_node_without_the_secret_gives_nothing(start: Start) -> None:
    taker = start(1, entry(SOME))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taker.take_from(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.sendall(os.urandom(32))
            asked = connection.recv(64)
            connection.sendall(asked[32:])  # the taker's own proof
            assert taker.expect("stuck") == digest_of(SOME)
            assert connection.recv(1) == b""
    assert bytes.fromhex(SECRET) not in asked
    assert taker.arrived_bytes(SOME) == 0


def test_a_frozen_node_is_skipped(start: Start) -> None:
    half = len(SOME) // 2
    first, still, last = (start(number, entry(SOME)) for number in (1, 2, 3))
    first.take_from()
    still.take_from(first.peer)
    last.take_from(still.peer, first.peer)
    first.expect("stuck")
    first.upload(SOME, until=half)
    until(lambda: last.arrived_bytes(SOME) == half, "the half does not get through")
    still.send(signal.SIGSTOP)
    first.sendall(SOME[half:])
    first.expect("done")
    last.expect("done")
    assert last.path(SOME).read_bytes() == SOME
    still.send(signal.SIGCONT)
    still.expect("done")
    assert still.path(SOME).read_bytes() == SOME
