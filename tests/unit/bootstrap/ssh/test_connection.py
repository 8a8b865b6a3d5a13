"""Errors of connections, commands and private keys, and the arguments of ssh commands, without a node."""

import errno
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import fabric
import paramiko
import pytest

import bootstrap.ssh.connection
import bootstrap.ssh.explain
from bootstrap.ssh.connection import InstanceAccess, NodeConnection, wait_for_connection
from bootstrap.ssh.explain import command_error, explain, explain_console, find_sudo_hint, may_be_booting
from bootstrap.ssh.host import Host, Output, find_ssh_options, render_ssh_command
from bootstrap.ssh.keys import Console, HostKeyPins, load_private_key
from foundation.errors import AwsError, ClusterError, ConnectError
from foundation.remote_command import RemoteCommand
from job_channels import channel
from node_facts import HOST


@pytest.mark.parametrize(
    ("message", "code", "shown"),
    [
        ("Welcome\nremoved\n", 0, None),
        ("", 0, "(it printed nothing)"),  # as fish ends for a script that it cannot parse
        ("removed\nfish: Unknown command\n", 0, "fish: Unknown command"),
    ],
)
def test_success_is_a_word_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, message: str, code: int, shown: str | None
) -> None:
    connection = NodeConnection(HOST, cast("fabric.Connection", None))
    monkeypatch.setattr(connection, "open_channel", lambda _: channel(message.encode(), exit_code=code))

    def ask() -> str:
        return connection.ask(RemoteCommand("x"), {"removed", "kept"}, timeout_s=1, what="the script")

    with nullcontext() if shown is None else pytest.raises(ClusterError, match=re.escape(shown)):
        assert ask() == "removed"


KEY = paramiko.ECDSAKey.generate()
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "x")
OOPS = tuple(f"Oops {number}" for number in range(10))
DENIED = "AWS says: no"
REBOOT = "aws ec2 reboot-instances --instance-ids i-1"


@pytest.mark.parametrize(
    ("error", "message", "hint", "may_pass"),
    [
        (REFUSED, "connection refused", REBOOT, True),
        (TimeoutError("timed out"), "no answer on port 22", "cluster allow", True),
        (paramiko.AuthenticationException("no"), "not accept the cluster's key for user ubuntu", "status", True),
        (paramiko.SSHException("Error reading SSH protocol banner"), "no sshd answers there", REBOOT, True),
        (EOFError(), "ssh failed: EOFError", "cluster status", True),
        (paramiko.BadHostKeyException("h", KEY, KEY), "host key has changed", "cluster down, then", False),
    ],
)
def test_failed_connections_are_explained(error: Exception, message: str, hint: str, *, may_pass: bool) -> None:
    text, step = explain(HOST, error)
    assert message in text
    assert "node-1 (i-1, ubuntu@198.18.0.2)" in text
    assert hint in step
    assert may_be_booting(error) is may_pass


FIFTY = "".join(f"line {n}\n" for n in range(50))
LAST_TEN = "".join(f"\n  | line {n}" for n in range(41, 50))


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "message", "hint"),
    [
        ("", "", -1, "node-1: killed by a signal: make\n  | (it printed nothing)", None),
        (FIFTY, "the end\n", 3, f"node-1: exit code 3 from: make{LAST_TEN}\n  | the end", None),
        ("", "x: Disk quota exceeded\n", 1, "node-1: exit code 1 from: make\n  | x: Disk quota exceeded",
         "cluster exec --node node-1 -- df -h; free some space there (see also quota -s), then run it again"),
        ("", "sudo: a password is required\n", 1, "node-1: exit code 1 from: make\n  | sudo: a password is required",
         find_sudo_hint("node-1", "sudo: a password is required")),
    ],
)  # fmt: skip
def test_errors_of_commands(stdout: str, stderr: str, code: int, message: str, hint: str | None) -> None:
    error = command_error(HOST, "make", Output(stdout=stdout, stderr=stderr, exit_code=code))
    assert (error.message, error.hint) == (message, hint)


@pytest.mark.parametrize(
    ("lines", "booted", "message"),
    [
        ((), False, "  according to its console, it is still booting\n  its console is still empty"),
        (("ip-10-0-0-5 login: ",), True, "  its console's last lines:\n  | ip-10-0-0-5 login: "),
        (("x", "[ 20.1] cloud-init[9]: Cloud-init v. 24.4 finished at Sat", "eth0: up"), True, "  | eth0: up"),
        (("node login: ", *OOPS), True, "last lines:" + "".join(f"\n  | {line}" for line in OOPS)),
    ],
)
def test_the_console_shows_whether_a_node_has_booted(lines: tuple[str, ...], message: str, *, booted: bool) -> None:
    text, found = explain_console(lines)
    assert (text.endswith(message), found) == (True, booted)
    assert ("still booting" in text) is not booted


def show(line: str) -> tuple[str, ...]:
    if line == DENIED:
        raise AwsError(DENIED)
    return (line,)


def wait(private_key: Path, *, timeout_s: float, last_line: str = "") -> None:
    console = Console(find_fingerprints=lambda _: frozenset(), find_lines=lambda _: show(last_line))
    access = InstanceAccess(
        private_key=private_key, pins=HostKeyPins(private_key.parent / "known_hosts"), console=console
    )
    wait_for_connection(HOST, access, timeout_s=timeout_s)


def test_a_disconnect_after_a_refused_key_is_reported_as_a_refused_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by OpenSSH 9.8 and later, which this machine may not have."""
    causes = [paramiko.AuthenticationException("no")]

    def fail_to_connect(_host: Host, **_: object) -> None:
        cause = causes.pop(0) if causes else paramiko.SSHException("Error reading SSH protocol banner")
        raise ConnectError("refused") from cause

    monkeypatch.setattr(bootstrap.ssh.connection, "connect", fail_to_connect)
    KEY.write_private_key_file(str(tmp_path / "key"))
    with pytest.raises(ConnectError, match="does not accept the cluster's key for user ubuntu: the image's user"):
        wait(tmp_path / "key", timeout_s=0.2)


@pytest.mark.parametrize(
    ("last_line", "calls", "message"),
    [
        ("[ 3.1] Free", 4, "none"),
        ("ip-10-0-0-5 login: ", 1, "none\n  its console's last lines:"),
        (DENIED, 1, f"none\n  its console cannot be read: {DENIED}"),
    ],
)
def test_a_node_that_still_boots_gets_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_line: str, calls: int, message: str
) -> None:
    made: list[Host] = []

    def fail_to_connect(host: Host, **_: object) -> None:
        made.append(host)
        raise ConnectError("none") from (REFUSED if len(made) < 4 else paramiko.BadHostKeyException("h", KEY, KEY))

    monkeypatch.setattr(bootstrap.ssh.connection, "connect", fail_to_connect)
    monkeypatch.setattr(bootstrap.ssh.connection, "END_EVERY_S", 0)
    monkeypatch.setattr(bootstrap.ssh.connection, "BOOTED_S", 0)
    with pytest.raises(ConnectError, match=message):
        wait(tmp_path / "key", timeout_s=60, last_line=last_line)
    assert len(made) == calls


@pytest.mark.parametrize(
    ("state", "message", "hint"),
    [
        ("missing", "the cluster's private key is missing", "run this on the machine that created the cluster"),
        ("passphrase", "damaged, not a private key, or with a passphrase", "run this on the machine"),
        ("0644", "other users can read this private key (mode 0644)", "chmod 600 "),
    ],
)
def test_unusable_private_keys(tmp_path: Path, state: str, message: str, hint: str) -> None:
    path = tmp_path / "id"
    phrase = "secret" if state == "passphrase" else ""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(path)], check=True)
    if phrase == "" and state != "missing":
        assert load_private_key(path).get_base64() == path.with_suffix(".pub").read_text().split()[1]
    match state:
        case "missing":
            path.unlink()
        case "0644":
            path.chmod(0o644)
    with pytest.raises(ClusterError) as caught:
        wait(path, timeout_s=0)
    assert caught.value.message == f"{path}: {message}"
    assert (caught.value.hint or "").startswith(hint)


def test_ssh_parses_its_options_as_intended(tmp_path: Path) -> None:
    """ssh -G prints what ssh would do with a path full of characters that it could misread."""
    folder = tmp_path / 'a "b" %h \\ c'
    folder.mkdir()
    pins, private_key = folder / "known_hosts", folder / "id"
    given = find_ssh_options(HOST, private_key=private_key, known_hosts=pins)
    words = render_ssh_command(HOST, options=given, is_terminal=True)
    shown = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    wanted = {
        "hostname": "198.18.0.2",
        "user": "ubuntu",
        "identityagent": "none",
        "identitiesonly": "yes",
        "hostkeyalias": "i-1",
        "stricthostkeychecking": "true",
        "globalknownhostsfile": "/dev/null",
        "forwardagent": "no",
        "forwardx11": "no",
        "updatehostkeys": "false",
        "preferredauthentications": "publickey",
    }
    assert {name: options.get(name) for name in wanted} == wanted
    assert "proxycommand" not in options
    assert options["identityfile"].replace("%%", "%") == str(private_key)
    assert options["userknownhostsfile"].replace("%%", "%") == str(pins)
