"""`cluster forward`: its words, and the ssh command that they become."""

import socket

import pytest

from bootstrap.ssh.host import Host, render_editor_links
from bootstrap.ssh.tunnel import OPENED, check_free, render_forward_command
from cluster.commands.forward import read_ports
from foundation.errors import ClusterError, UsageError

NODE = Host(name="node-1", instance_id="i-1", address="198.18.0.2", private_ip="", user="ubuntu", is_head=False)
OWN = Host(name="gpu2", instance_id="gpu2", address="gpu2", private_ip="", user="", is_head=False, spec="bob@gpu2:2222")


@pytest.mark.parametrize(
    ("words", "local_port", "expected"),
    [
        (["6006"], None, ({6006: 6006}, None)),
        (["6006", "node-1"], None, ({6006: 6006}, "node-1")),
        (["8081:8080", "9000", "node-1"], None, ({8081: 8080, 9000: 9000}, "node-1")),
        (["6006", "node-1"], 7000, ({7000: 6006}, "node-1")),
    ],
)
def test_what_is_forwarded(words: list[str], local_port: int | None, expected: tuple[dict[int, int], str]) -> None:
    assert read_ports(words, local_port=local_port) == expected


@pytest.mark.parametrize(
    ("words", "local_port", "said"),
    [
        (["node-1"], None, "must be PORT or LOCAL:PORT"),
        (["node-1", "6006"], None, "must be PORT or LOCAL:PORT"),
        (["6006", "node-1", "node-2"], None, "must be PORT or LOCAL:PORT"),
        (["6006:localhost:6006"], None, "must be PORT or LOCAL:PORT"),
        (["0"], None, "0 is not a port"),
        (["99999:80"], None, "99999 is not a port"),
        (["80"], 70000, "70000 is not a port"),
        (["80", "8080:80", "8080"], None, "the same port on this machine"),
        (["80", "81"], 8080, "for a single PORT"),
        (["81:80"], 8080, "for a single PORT"),
    ],
)
def test_what_cannot_be_forwarded(words: list[str], local_port: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_ports(words, local_port=local_port)


def test_a_port_in_use_is_an_error_with_another_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} .* another program") as caught:
            check_free({port: 80})
    words = (caught.value.hint or "").partition("cluster forward ")[2].split()
    assert read_ports(words)[0] != {port: 80}
    assert list(read_ports(words)[0].values()) == [80]


def test_forwarding_has_the_clusters_key_and_ends_with_its_connection() -> None:
    given = {"IdentityFile": "key", "ServerAliveInterval": "15"}
    words = render_forward_command(NODE, {8081: 80}, options=given)
    assert words[:3] == ("ssh", "-F", "none")
    assert words[-8:] == ("-N", "-T", "-L", "127.0.0.1:8081:127.0.0.1:80", "-l", "ubuntu", "--", "198.18.0.2")
    assert [word for word in words if word.startswith(("Identity", "ServerAliveI", "Exit", "Local"))] == [
        "IdentityFile=key",
        "ServerAliveInterval=5",
        "ExitOnForwardFailure=yes",
        f"LocalCommand=echo '{OPENED}'",
    ]


def test_own_hosts_keep_the_users_configuration() -> None:
    words = render_forward_command(OWN, {80: 80}, options={"IdentityFile": "key"})
    assert words[-6:] == ("-L", "127.0.0.1:80:127.0.0.1:80", "-p", "2222", "--", "bob@gpu2")
    assert not {"-F", "IdentityFile=key"} & set(words)


@pytest.mark.parametrize(("user", "home"), [("ubuntu", "/home/ubuntu"), ("root", "/root")])
def test_links_open_an_editor_in_the_home_folder(user: str, home: str) -> None:
    assert render_editor_links("demo-node-0", user).splitlines() == [
        f"# vscode://vscode-remote/ssh-remote+demo-node-0{home}",
        f"# cursor://vscode-remote/ssh-remote+demo-node-0{home}",
        f"# zed://ssh/demo-node-0{home}",
    ]
