"""The first contact with a node, over real ssh to a server in this process, with a console that the test sets."""

import threading

import paramiko
import pytest
from paramiko.common import AUTH_FAILED

import bootstrap.ssh.connection
import bootstrap.ssh.keys
from bootstrap.ssh.keys import Console
from first_contact_node import OTHER, Account, Node, node  # noqa: F401 - a fixture
from foundation.errors import AwsError, ConnectError

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize("before", [[NONE, NONE], [OTHER, frozenset({"SHA256:" + "y" * 43})]])
def test_nothing_is_sent_until_the_console_shows_the_key(node: Node, before: list[frozenset[str]]) -> None:
    """The console may be empty at first, or show keys that cloud-init has replaced since."""
    node.shown = [*before, node.own]
    with node.reached():
        assert node.happened == ["look", "look", "look", "auth"]


def test_a_key_that_is_not_on_the_console_is_refused(node: Node) -> None:
    node.shown = [OTHER]
    error = node.refused()
    assert ("auth" in node.happened, node.pins.find_all()) == (False, {})
    presented = f"presented: {node.key.get_name()} {node.key.fingerprint}\n  console:   {next(iter(OTHER))}"
    assert f"Nothing was sent to it.\n  {presented}" in error.message
    assert str(error.hint).startswith("cluster down, then cluster up")


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

    console = Console(find_fingerprints=denied, find_lines=lambda _: ())
    with pytest.raises(AwsError, match="AWS says no to i-1"), node.reached(console=console):
        pass
    assert node.happened == []
    assert not open_connections()


def open_connections() -> list[paramiko.Transport]:
    """The open connections of this side."""
    transports = [thread for thread in threading.enumerate() if isinstance(thread, paramiko.Transport)]
    return [transport for transport in transports if transport.is_active() and not transport.server_mode]


def test_an_instance_that_has_ended_is_not_awaited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.ssh.connection, "END_EVERY_S", 0.1)
    node.shown = [NONE]
    ends = iter([None, "is stopped: Server.ScheduledStop"])
    console = Console(find_fingerprints=node.look, find_lines=lambda _: (), find_end=lambda _: next(ends))
    with (
        pytest.raises(ConnectError, match=r"^node-1 \(i-1\) is stopped: Server.ScheduledStop$"),
        node.reached(timeout_s=60, console=console),
    ):
        pass


def test_a_key_that_the_node_no_longer_has(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "check_auth_publickey", lambda *_: AUTH_FAILED)
    node.shown, node.lines = [node.own], ("node login: ",)
    error = node.refused(timeout_s=0.1)
    assert "does not accept the cluster's key for user ubuntu: the image's user has another name" in error.message
    assert error.message.endswith("its console's last lines:\n  | node login: ")


def test_an_sshd_that_hangs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bootstrap.ssh.connection.LOGIN_OPTIONS, "banner_timeout", 0.1)
    monkeypatch.setattr(paramiko.Transport, "start_server", lambda *_, **__: None)
    assert "port 22 takes connections, but no sshd answers there" in node.refused(timeout_s=0.1).message
