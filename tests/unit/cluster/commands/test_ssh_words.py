"""`cluster forward` and `cp`: their words, and the commands of OpenSSH that they become."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.ssh.host import render_scp_command
from bootstrap.ssh.tunnel import ENDED, OPENED, ProgramEnded, check_free, keep_open
from cluster.commands.ssh import read_paths, read_ports
from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.progress import Event, silent
from node_facts import HOST


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["node-1"], "must be ports, and then a node"),
        (["node-1", "6006"], "must be ports, and then a node"),
        (["6006", "node-1", "node-2"], "must be ports, and then a node"),
        (["0"], "0 is not a port"),
        (["99999:80"], "99999 is not a port"),
        (["80", "8080:80", "8080"], "the same port on this machine"),
    ],
)
def test_what_cannot_be_forwarded(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_ports(words)


def test_a_port_in_use_is_an_error_with_another_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} .* another program") as caught:
            check_free({port: 80})
    words = (caught.value.hint or "").partition("cluster forward ")[2].split()
    assert read_ports(words)[0] != {port: 80}
    assert list(read_ports(words)[0].values()) == [80]


def test_ssh_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    ssh = ("sh", "-c", f"exec 9>{tmp_path}/held; echo begun >&9; exec sleep 600")
    given = f"{ssh}, find_line=print, opened=print, report=print"
    program = f"from bootstrap.ssh.tunnel import keep_open; keep_open({given})"
    with subprocess.Popen([sys.executable, "-c", program]) as command, (tmp_path / "held").open() as held:
        assert held.readline() == "begun\n"
        command.kill()
        assert held.read() == ""  # at the end of the last process that has it open


def test_a_tunnel_finds_the_new_address_of_its_node(tmp_path: Path) -> None:
    """After `cluster stop --nodes` and `cluster start`; until then the reason is shown."""
    words: list[str] = []
    found = iter([False, True])

    def find_line() -> tuple[str, ...]:
        if next(found):
            return ("echo", OPENED)
        raise ClusterError("node-0 is stopped")

    def report(event: Event) -> None:
        words.append(event.what)
        if event.what == "connected again":
            raise KeyboardInterrupt

    old = ("sh", "-c", f"mkdir {tmp_path}/once && echo {OPENED}")
    with pytest.raises(KeyboardInterrupt):
        keep_open(old, find_line=find_line, opened=lambda: None, report=report)
    lost = "the connection is lost: connecting again, until Ctrl-C"
    assert [word for word in words if not word.startswith("ssh: ")] == [lost, "node-0 is stopped", "connected again"]


def test_a_tunnel_ends_with_the_program_or_its_node(tmp_path: Path) -> None:
    def find_line() -> tuple[str, ...]:
        raise NotFoundError("no cluster")

    for line, end in ((f"echo {OPENED}; echo; echo {ENDED}", ProgramEnded), (f"echo {OPENED}; kill $$", NotFoundError)):
        once = f"[ -e $0 ] || exit; rm $0; {line}"
        (tmp_path / "once").touch()
        words = ("sh", "-c", once, f"{tmp_path}/once")
        with pytest.raises(end):
            keep_open(words, find_line=find_line, opened=lambda: None, report=silent)


@pytest.mark.parametrize(
    ("sources", "target", "message"),
    [
        (["a"], "b", "neither SOURCE nor TARGET"),
        (["node-0:a"], "node-1:b", "from this machine to one node"),
        (["node-0:a", "b"], ".", "from this machine to one node"),
    ],
)
def test_what_cannot_be_copied(sources: list[str], target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_paths(sources, target)


@pytest.mark.parametrize("node", ["node-0", "gpu_1", "me@gpu1:2222", "198.18.0.2"])
def test_a_node_is_named_as_in_the_list_of_hosts(node: str) -> None:
    assert read_paths([f"{node}:a b", f"{node}:"], ".") == (node, ("a b", "."), False)
    assert read_paths(["./a:b"], f"{node}:/tmp/") == (node, ("/tmp/",), True)


def test_a_local_name_with_a_colon_is_not_a_host() -> None:
    words = render_scp_command(HOST, ["a:b", "/c:d"], "x", to_node=True, options={})
    assert words[-3:] == ("./a:b", "/c:d", "ubuntu@198.18.0.2:x")
    words = render_scp_command(HOST, ["x y"], "a:b", to_node=False, options={})
    assert words[-2:] == ("ubuntu@198.18.0.2:x y", "./a:b")
    assert "-s" in words  # not the default before OpenSSH 9.0
