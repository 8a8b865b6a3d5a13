"""The first contact with a node, over real ssh to a server in this process, with a console that the test sets."""

import itertools
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

import bootstrap.ssh.connection
import bootstrap.ssh.keys
from bootstrap.ssh.keys import LONGEST_PAUSE_S, Console, FirstContact, HostKeyPins, UnverifiedHostKey
from first_contact_node import OTHER, Node, node  # noqa: F401 - a fixture
from foundation.errors import AwsError, ClusterError, ConnectError

NONE: frozenset[str] = frozenset()


def test_a_key_on_the_console_is_pinned_and_the_console_read_once(node: Node) -> None:
    node.shown = [node.own]
    with node.reached():
        assert node.happened == ["look", "auth"]
    assert node.pins.find("i-1") == (node.key.get_name(), node.key.get_base64())
    assert node.pins.path.parent.stat().st_mode & 0o077 == 0
    with node.reached():
        assert node.happened == ["look", "auth", "auth"]


@pytest.mark.parametrize("before", [[NONE, NONE], [OTHER, frozenset({"SHA256:" + "y" * 43})]])
def test_nothing_is_sent_until_the_console_shows_the_key(node: Node, before: list[frozenset[str]]) -> None:
    """The console may be empty at first, or show keys that cloud-init has replaced since."""
    node.shown = [*before, node.own]
    with node.reached():
        assert node.happened == ["look", "look", "look", "auth"]


def test_a_key_that_is_not_on_the_console_is_refused_after_a_second_look(node: Node) -> None:
    node.shown = [OTHER]
    error = node.refused()
    assert node.happened == ["look", "look"]
    assert "this may not be the machine that was launched. Nothing was sent to it." in error.message
    assert f"presented: {node.key.get_name()} {node.key.fingerprint}" in error.message
    assert f"console:   {min(OTHER)}" in error.message
    assert node.pins.find("i-1") is None
    assert not open_connections()


def test_without_keys_on_the_console_the_user_can_pin_one(node: Node) -> None:
    node.shown = [NONE]
    node.lines = ("[   12.3] Reached target", "node login: ")
    error = node.refused(timeout_s=0.3)
    assert "auth" not in node.happened
    for words in (
        "shows no host keys' fingerprints",
        "It is still booting, or its image's cloud-init does not print them, or they are too old",
        f"presented: {node.key.get_name()} {node.key.fingerprint}",
        "its console's last lines:\n  | [   12.3] Reached target\n  | node login: ",
    ):
        assert words in error.message
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ecdsa_key.pub" in str(error.hint)
    assert str(node.pins.path).replace("'", "'\"'\"'") in str(error.hint)
    [line] = [line for line in error.message.splitlines() if "its line:" in line]
    node.pins.path.parent.mkdir()
    node.pins.path.write_text(line.partition("its line:")[2].strip() + "\n")
    node.happened.clear()
    with node.reached():
        assert node.happened == ["auth"]


def test_an_unreadable_console_ends_the_attempt_and_the_connection(node: Node) -> None:
    def denied(instance_id: str) -> frozenset[str]:
        raise AwsError(f"AWS says no to {instance_id}", hint="ec2:GetConsoleOutput")

    console = Console(find_fingerprints=denied, find_last_lines=lambda _: ())
    with pytest.raises(AwsError, match="AWS says no to i-1"), node.reached(console=console):
        pass
    assert node.happened == []
    assert not open_connections()


def open_connections() -> list[paramiko.Transport]:
    """The open connections of this side."""
    transports = [thread for thread in threading.enumerate() if isinstance(thread, paramiko.Transport)]
    return [transport for transport in transports if transport.is_active() and not transport.server_mode]


@pytest.mark.parametrize(
    ("find_last_lines", "said"),
    [
        (lambda _: (), "  its console is still empty"),
        (lambda _: ("a", "b"), "  its console's last lines:\n  | a\n  | b"),
    ],
)
def test_an_error_quotes_the_console(
    node: Node, monkeypatch: pytest.MonkeyPatch, find_last_lines: Callable[[str], tuple[str, ...]], said: str
) -> None:
    unused = socket.create_server(("127.0.0.1", 0))
    address = unused.getsockname()
    unused.close()
    monkeypatch.setattr(paramiko.SSHClient, "_families_and_addresses", lambda *_: [(socket.AF_INET, address)])
    console = Console(find_fingerprints=node.look, find_last_lines=find_last_lines)
    with pytest.raises(ConnectError) as caught, node.reached(timeout_s=0.2, console=console):
        pass
    assert "connection refused on port 22" in caught.value.message
    assert caught.value.message.endswith(said)
    assert node.happened == []


def test_a_timeout_hints_at_a_changed_address(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener with a full queue is silent, like a firewall."""
    monkeypatch.setattr(bootstrap.ssh.connection, "CONNECT_TIMEOUT_S", 1)  # Fabric accepts only whole seconds
    node.lines = ("node login: ",)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = silent.getsockname()
        monkeypatch.setattr(paramiko.SSHClient, "_families_and_addresses", lambda *_: [(socket.AF_INET, address)])
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.settimeout(0)
            one.connect_ex(address)
        error = node.refused(timeout_s=0.1)
        for one in waiting:
            one.close()
    assert "no answer on port 22" in error.message
    assert error.message.endswith("| node login: ")
    assert "cluster allow" in str(error.hint)


def test_a_console_error_does_not_hide_the_connection_error(node: Node) -> None:
    def broken(instance_id: str) -> tuple[str, ...]:
        raise ClusterError(f"no console of {instance_id}")

    node.shown = [NONE]
    console = Console(find_fingerprints=node.look, find_last_lines=broken)
    with pytest.raises(ConnectError) as caught, node.reached(timeout_s=0.1, console=console):
        pass
    assert "shows no host keys' fingerprints" in caught.value.message
    assert caught.value.message.endswith("its console cannot be read: no console of i-1")


def test_an_instance_that_has_ended_is_not_awaited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.ssh.connection, "END_EVERY_S", 0.1)
    node.shown = [NONE]
    ends = iter([None, "is stopped: Server.ScheduledStop"])
    console = Console(find_fingerprints=node.look, find_last_lines=lambda _: (), find_end=lambda _: next(ends))
    with (
        pytest.raises(ConnectError, match=r"^node-1 \(i-1\) is stopped: Server.ScheduledStop$"),
        node.reached(timeout_s=60, console=console),
    ):
        pass


class Clock:
    """A clock for bootstrap.ssh.keys that the test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_the_console_is_read_once_per_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(bootstrap.ssh.keys, "time", clock)
    looks: list[float] = []

    def look(_: str) -> frozenset[str]:
        looks.append(clock.now)
        return NONE

    contact = FirstContact(
        "i-1",
        pins=HostKeyPins(tmp_path / "known_hosts"),
        console=Console(find_fingerprints=look, find_last_lines=lambda _: ()),
    )
    key = paramiko.ECDSAKey.generate()
    while clock.now < 1300:
        with pytest.raises(UnverifiedHostKey):
            contact.missing_host_key(paramiko.SSHClient(), "h", key)
        clock.now += 0.1
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert 0.3 <= pauses[0] <= 0.8
    assert max(pauses) <= LONGEST_PAUSE_S * 1.25 + 0.2
    assert min(pauses[8:]) >= LONGEST_PAUSE_S * 0.75
    assert len({round(pause, 1) for pause in pauses[8:]}) > 1
