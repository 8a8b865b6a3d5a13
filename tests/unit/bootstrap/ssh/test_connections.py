"""Connections that are made ahead, to where nodes were the last time: over real ssh to a server in this process."""

from dataclasses import replace

import paramiko
import pytest

import bootstrap.ssh.connections
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from first_contact_node import HOST, Node, node
from foundation.errors import ConnectError
from waits import until

__all__ = ["node"]

LAST = replace(HOST, name=HOST.instance_id, private_ip=HOST.address)


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Of whom facts were gathered: the server of these tests runs no commands."""
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
    return Connections(private_key=node.private_key, pins=node.pins, console=node.console(), wait_s=1)


def test_what_was_made_ahead_is_used_once_and_with_what_was_seen(node: Node) -> None:
    pin(node)
    with open_connections(node) as connections:
        connections.begin([LAST], python="auto")
        connection = connections.get(HOST)
        assert connection.host == HOST
        assert connections.get(HOST) is connection
        assert connections.take_facts(HOST) == "facts with python auto"
        assert connections.take_facts(HOST) is None
    assert node.happened == ["auth"]


def test_a_node_that_has_moved_is_connected_to_anew(node: Node, facts: list[NodeConnection]) -> None:
    pin(node)
    with open_connections(node) as connections:
        connections.begin([replace(LAST, address="192.0.2.8")], python="auto")
        until(lambda: facts)
        assert connections.get(HOST) is not facts[0]
        assert connections.take_facts(HOST) is None
        with pytest.raises(ConnectError):
            facts[0].run("true")  # it has been hung up
    assert node.happened == ["auth", "auth"]


def test_what_nobody_asked_for_is_hung_up(node: Node, facts: list[NodeConnection]) -> None:
    pin(node)
    with open_connections(node) as connections:
        connections.begin([LAST], python="auto")
        until(lambda: facts)
    with pytest.raises(ConnectError):
        facts[0].run("true")


def test_nothing_is_made_ahead_to_one_whose_key_is_not_pinned(node: Node) -> None:
    node.shown = [node.own]
    with open_connections(node) as connections:
        connections.begin([LAST], python="auto")
        assert node.happened == []
        connections.get(HOST)
    assert node.happened == ["look", "auth"]


def test_another_machine_at_that_address_is_told_nothing(node: Node) -> None:
    pin(node, paramiko.ECDSAKey.generate())
    with open_connections(node) as connections:
        connections.begin([LAST], python="auto")
        with pytest.raises(ConnectError, match="host key"):
            connections.get(HOST)
    assert node.happened == []
