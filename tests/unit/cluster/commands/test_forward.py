"""`cluster forward`: its words, and the ssh command that they become."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.ssh.host import Host, render_editor_links
from bootstrap.ssh.tunnel import OPENED, check_free, render_forward_command
from cluster.commands.ssh import read_ports
from foundation.errors import ClusterError, UsageError

NODE = Host(name="node-1", instance_id="i-1", address="198.18.0.2", private_ip="", user="ubuntu", is_head=False)
OWN = Host(name="gpu2", instance_id="gpu2", address="gpu2", private_ip="", user="", is_head=False, spec="bob@gpu2:2222")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["6006"], ({6006: 6006}, None)),
        (["6006", "node-1"], ({6006: 6006}, "node-1")),
        (["8081:8080", "9000", "node-1"], ({8081: 8080, 9000: 9000}, "node-1")),
    ],
)
def test_what_is_forwarded(words: list[str], expected: tuple[dict[int, int], str]) -> None:
    assert read_ports(words) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["node-1"], "must be ports, and then a node"),
        (["node-1", "6006"], "must be ports, and then a node"),
        (["6006", "node-1", "node-2"], "must be ports, and then a node"),
        (["6006:localhost:6006", "80"], "must be ports, and then a node"),
        (["0"], "0 is not a port"),
        (["99999:80"], "99999 is not a port"),
        (["80", "8080:80", "8080"], "the same port on this machine"),
    ],
)
def test_what_cannot_be_forwarded(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_ports(words)


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
    assert words[-8:] == ("-l", "ubuntu", "-N", "-T", "-L", "127.0.0.1:8081:127.0.0.1:80", "--", "198.18.0.2")
    assert [word for word in words if word.startswith(("Identity", "ServerAliveI", "Exit", "Local", "none"))] == [
        "ExitOnForwardFailure=yes",
        "ServerAliveInterval=5",  # ssh takes the first one
        f"LocalCommand=echo '{OPENED}'",
        "none",
        "IdentityFile=key",
        "ServerAliveInterval=15",
    ]


def test_own_hosts_keep_the_users_configuration() -> None:
    words = render_forward_command(OWN, {80: 80}, options={"IdentityFile": "key"})
    assert words[-8:] == ("-p", "2222", "-N", "-T", "-L", "127.0.0.1:80:127.0.0.1:80", "--", "bob@gpu2")
    assert not {"-F", "IdentityFile=key"} & set(words)


def test_ssh_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    ssh = ("sh", "-c", f"exec 9>{tmp_path}/held; echo begun >&9; exec sleep 600")
    program = f"from bootstrap.ssh.tunnel import keep_open; keep_open({ssh}, opened=print, report=print)"
    with subprocess.Popen([sys.executable, "-c", program]) as command, (tmp_path / "held").open() as held:
        assert held.readline() == "begun\n"
        command.kill()
        assert held.read() == ""  # at the end of the last process that has it open


@pytest.mark.parametrize(("user", "home"), [("ubuntu", "/home/ubuntu"), ("root", "/root")])
def test_links_open_an_editor_in_the_home_folder(user: str, home: str) -> None:
    assert render_editor_links("demo-node-0", user).splitlines() == [
        f"# vscode://vscode-remote/ssh-remote+demo-node-0{home}",
        f"# cursor://vscode-remote/ssh-remote+demo-node-0{home}",
        f"# zed://ssh/demo-node-0{home}",
    ]
