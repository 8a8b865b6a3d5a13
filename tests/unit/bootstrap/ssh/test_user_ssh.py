"""The user's own ssh set-up: routes, known hosts, and errors."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import fabric
import paramiko
import pytest

from bootstrap.ssh import user_ssh
from bootstrap.ssh.connection import find_hops
from bootstrap.ssh.host import Host, Spec, parse_spec
from bootstrap.ssh.user_ssh import Route, UnknownHostKey, connect, explain, find_known_keys, find_route
from foundation.errors import ClusterError, ConnectError
from node_facts import LAB
from waits import until

KEY, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
SHOWN = f"{KEY.get_name()} {KEY.get_base64()}"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("lab", Spec(host="lab")),
        ("10.0.0.7:22", Spec(host="10.0.0.7", port=22)),
        ("first.last@lab_1.example.org:2222", Spec(host="lab_1.example.org", user="first.last", port=2222)),
        ("", None),
        ("-oProxyCommand=id", None),
        ("lab:65536", None),
        ("lab;id", None),
    ],
)
def test_parse_spec(text: str, spec: Spec | None) -> None:
    assert parse_spec(text) == spec


@pytest.fixture
def ssh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """~/.ssh of a user whose home is another one than the account's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


@pytest.mark.parametrize(
    ("text", "spec", "route"),
    [
        ("Match user bob\n HostName 10.9.0.1", Spec(host="lab", user="bob"),
         Route(hostname="10.9.0.1", user="bob", port=22, proxied=False)),
        ("Host lab\n HostName 10.9.0.1\n User al\n Port 2222", Spec(host="lab"),
         Route(hostname="10.9.0.1", user="al", port=2222, proxied=False)),
        ("Host lab\n User al\n ProxyJump jump\nHost jump\n HostName 10.1.1.1", Spec(host="lab"),
         Route(hostname="lab", user="al", port=22, proxied=True)),
        ("Host lab\n User al\n ProxyCommand nc %h %p", Spec(host="lab"),
         Route(hostname="lab", user="al", port=22, proxied=True)),
        ("Host *.lab\n User al\nMatch host x.lab\n Port 7", Spec(host="x.lab"),
         Route(hostname="x.lab", user="al", port=7, proxied=False)),
        ("Host lab\n User al\n ProxyJump none\nHost *\n ProxyJump jump", Spec(host="lab"),
         Route(hostname="lab", user="al", port=22, proxied=False)),
    ],
)  # fmt: skip
def test_routes_from_ssh_config(ssh_folder: Path, text: str, spec: Spec, route: Route) -> None:
    (ssh_folder / "config").write_text(text)
    assert find_route(spec) == route


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[fabric.Connection]:
    """The connections that `connect` has prepared, none of which is opened."""
    made: list[fabric.Connection] = []
    monkeypatch.setattr(user_ssh, "open_connection", lambda _, connection, __: made.append(connection))
    return made


def test_jump_hosts_are_visited_in_their_order(ssh_folder: Path, connections: list[fabric.Connection]) -> None:
    """The last of them is the nearest to the host. Fabric's own settings do not count."""
    (ssh_folder.parent / ".fabric.yaml").write_text("{")
    (ssh_folder / "config").write_text("Host lab\n ProxyJump gate,al@inner:2222\n")
    connect(LAB, spec=Spec(host="lab"))
    assert [(hop.host, hop.port) for hop in find_hops(connections[0])] == [("lab", 22), ("inner", 2222), ("gate", 22)]


def test_the_agent_of_ssh_config(ssh_folder: Path, connections: list[fabric.Connection]) -> None:
    """Which is not that of $SSH_AUTH_SOCK, such as 1Password's. Its keys come in ssh's order."""
    sock, key, other = ssh_folder / "sock", ssh_folder / "key", ssh_folder / "other"
    agent_of = f" IdentityAgent {sock}\n IdentityFile {key}\n"
    (ssh_folder / "config").write_text(
        f"Host lab\n{agent_of}Host alone\n{agent_of} IdentitiesOnly yes\nHost none\n IdentityAgent none\n"
    )
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL) as agent:
        until(sock.exists, "the agent listens")
        for path in (other, key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)
            subprocess.run(["ssh-add", "-q", path], env={**os.environ, "SSH_AUTH_SOCK": str(sock)}, check=True)
        key.unlink()  # the public half is enough
        for host, names in (("lab", ["key", "other"]), ("alone", ["key"])):
            connect(LAB, spec=Spec(host=host))
            assert [found.comment for found in connections[-1].client._agent.get_keys()] == names
        agent.terminate()
    for host in ("lab", "none"):  # the first one's agent is gone
        connect(LAB, spec=Spec(host=host))
    assert connections[2].client._agent.get_keys() == ()
    assert connections[3].connect_kwargs["allow_agent"] is False


@pytest.mark.parametrize(("config", "name"), [("", "[lab]:2222"), ("Host lab\n HostKeyAlias other\n", "other")])
def test_an_unknown_host_is_refused(
    ssh_folder: Path, connections: list[fabric.Connection], config: str, name: str
) -> None:
    (ssh_folder / "config").write_text(config)
    (ssh_folder / "known_hosts").write_text(f"{name} {SHOWN}\n")
    connect(LAB, spec=Spec(host="lab", port=2222))
    client = connections[0].client
    assert client.get_host_keys().check("[lab]:2222", KEY)
    with pytest.raises(UnknownHostKey):
        client._policy.missing_host_key(client, "[lab]:2222", OTHER)


@pytest.mark.parametrize("text", ["Garbage\n", "Host lab\n Port none\n"])
def test_an_invalid_ssh_config_is_an_error(ssh_folder: Path, text: str) -> None:
    (ssh_folder / "config").write_text(text)
    with pytest.raises(ClusterError, match="lab: your ssh_config is invalid: "):
        find_route(Spec(host="lab"))


@pytest.mark.parametrize(
    ("lines", "name", "known"),
    [
        ([f"lab {SHOWN} comment"], "lab", True),
        ([f"lab {SHOWN}"], "[lab]:2222", False),
        ([f"[lab]:2222 {SHOWN}"], "[lab]:2222", True),
        ([f"{paramiko.HostKeys.hash_host('lab')} {SHOWN}"], "lab", True),
        ([f"lab {SHOWN}", f"@revoked * {SHOWN}"], "lab", False),
        ([f"@cert-authority * {SHOWN}"], "lab", False),
        (["lab", "lab ssh-rsa", "lab ssh-rsa !!!", "lab ssh-new AAAA", "# lab", "", f"lab {SHOWN}"], "lab", True),
    ],
)
def test_find_known_keys(lines: list[str], name: str, tmp_path: Path, *, known: bool) -> None:
    (tmp_path / "known_hosts").write_text("".join(f"{line}\n" for line in lines))
    found = find_known_keys([tmp_path / "gone", tmp_path / "known_hosts"], name)
    assert [key.get_base64() for key in found] == ([KEY.get_base64()] if known else [])


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (UnknownHostKey("[lab.example.org]:2222", KEY), "its host key is not in your known_hosts", "ssh lab, once"),
        (UnknownHostKey("[lab.example.org]:2222", KEY), "nothing was sent", "ssh-keyscan -p 2222 lab.example.org"),
        (paramiko.BadHostKeyException("[lab.example.org]:2222", OTHER, KEY), "differs from the one in your known_hosts",
         "ssh-keygen -R '[lab.example.org]:2222'"),
        (paramiko.PasswordRequiredException("x"), "has a passphrase", "ssh-add"),
        (paramiko.AuthenticationException("x"), "accepts none of your keys for user alice",
         "ssh -o PreferredAuthentications=publickey -o ControlPath=none lab true"),
        (TimeoutError("x"), "no answer on port 2222 within", "ssh lab true"),
        (OSError(113, "No route to host"), "ssh failed: No route to host", "ssh lab true"),
        (paramiko.ChannelException(2, "Connect failed"), "its jump host does not reach it: Connect failed",
         "take lab out of the list"),
    ],
)  # fmt: skip
def test_failed_connections_to_own_hosts_are_explained(error: Exception, message: str, hint: str) -> None:
    told, what_to_type = explain(LAB, Spec(host="lab"), error)
    assert told.startswith("lab (alice@lab.example.org port 2222): ")
    assert message in told
    assert hint in what_to_type


def test_a_jump_host_that_refuses_is_named(ssh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Host, __: fabric.Connection, explain_error: Callable[[BaseException], tuple[str, str]]) -> None:
        raise ConnectError(explain_error(paramiko.AuthenticationException("x"))[0])

    monkeypatch.setattr(user_ssh, "open_connection", refuse)
    (ssh_folder / "config").write_text("Host lab\n ProxyJump gate,inner\nHost gate\n HostName 10.9.0.9\n Port 2222\n")
    with pytest.raises(ConnectError, match=r"gate \(\w+@10\.9\.0\.9 port 2222\), on the way to lab: ssh answers"):
        connect(LAB, spec=Spec(host="lab"))
