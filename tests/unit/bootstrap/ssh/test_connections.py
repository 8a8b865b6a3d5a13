"""Connections that are opened in advance, over real ssh to a server in this process, and one task for many nodes."""

import os
import signal
import threading
from functools import partial

import paramiko
import pytest
from msgspec.structs import replace

import bootstrap.ssh.connections
from bootstrap.ssh.connection import NodeConnection, wait_for_connection
from bootstrap.ssh.connections import Connections, on_all
from first_contact_node import HOST, Node, node
from foundation.errors import ClusterError, ConfigError, ConnectError
from foundation.remote_command import RemoteCommand
from waits import until

__all__ = ["node"]

LAST = replace(HOST, name=HOST.instance_id, private_ip=HOST.address)


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The connections over which facts were gathered. The gathering is a fake, as this server runs no commands."""
    gathered: list[object] = []

    def gather(connection: NodeConnection, *, python: str) -> object:
        gathered.append(connection)
        return f"facts with python {python}"

    monkeypatch.setattr(bootstrap.ssh.connections, "gather_facts", gather)
    return gathered


def pin(node: Node, key: paramiko.PKey | None = None) -> None:
    found = key or node.key
    node.pins.pin(HOST.instance_id, found.get_name(), found.get_base64())


def open_connections(node: Node) -> Connections:
    return Connections(partial(wait_for_connection, access=node.access(), timeout_s=1))


def look(connections: Connections) -> tuple[NodeConnection, object]:
    return connections.describe(HOST, python="auto")


def test_an_early_connection_and_its_facts_are_used(node: Node, facts: list[object]) -> None:
    pin(node)
    with open_connections(node) as connections:
        connections.begin([LAST], node.access(), python="auto")
        connection = connections.get(HOST)
        assert connection.host == HOST
        assert connections.get(HOST) is connection
        assert look(connections) == (connection, "facts with python auto")
        assert len(facts) == 1
        assert look(connections)[0] is connection
        assert len(facts) == 2  # the first ones count once
    assert node.happened == ["auth"]


def test_a_moved_node_gets_a_new_connection(node: Node, facts: list[NodeConnection]) -> None:
    pin(node)
    with open_connections(node) as connections:
        connections.begin([replace(LAST, address="192.0.2.8")], node.access(), python="auto")
        until(lambda: facts)
        assert look(connections)[0] is not facts[0]
        assert len(facts) == 2
        with pytest.raises(ConnectError):
            facts[0].run(RemoteCommand("true"))  # this connection is closed
    assert node.happened == ["auth", "auth"]


def test_no_early_connection_without_a_pinned_key(node: Node) -> None:
    node.shown = [node.own]
    with open_connections(node) as connections:
        connections.begin([LAST], node.access(), python="auto")
        assert node.happened == []
        connections.get(HOST)
    assert node.happened == ["look", "auth"]


def test_another_machine_at_that_address_learns_nothing(node: Node) -> None:
    pin(node, paramiko.ECDSAKey.generate())
    with open_connections(node) as connections:
        connections.begin([LAST], node.access(), python="auto")
        with pytest.raises(ConnectError, match="host key"):
            connections.get(HOST)
    assert node.happened == []


@pytest.mark.parametrize(("kind", "exit_code"), [(ConnectError, 1), (ConfigError, 2)])
def test_all_failures_are_collected_and_raised_once(kind: type[ClusterError], exit_code: int) -> None:
    tried: list[int] = []

    def work(number: int) -> None:
        tried.append(number)
        if number % 2:
            raise kind(f"node-{number} is gone", hint="cluster status")

    with pytest.raises(ClusterError, match="2 of 4 nodes failed") as raised:
        on_all([0, 1, 2, 3], work)
    assert sorted(tried) == [0, 1, 2, 3]
    assert "node-1 is gone" in raised.value.message
    assert "node-3 is gone" in raised.value.message
    assert raised.value.exit_code == exit_code


def test_ctrl_c_does_not_wait_for_silent_nodes() -> None:
    both, never = threading.Barrier(2), threading.Event()
    ended: list[int] = []

    def work(number: int) -> None:
        both.wait(60)
        if number == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        never.wait(60)
        ended.append(number)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            on_all([1, 2], work)
        assert not ended
    finally:
        signal.signal(signal.SIGUSR1, before)
        never.set()
