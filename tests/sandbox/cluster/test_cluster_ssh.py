"""`cluster ssh` on real hosts, and a user's own ssh set-up that would break or weaken every connection."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from project import CLUSTER, Project
from waits import until

pytestmark = pytest.mark.sandbox


def test_ssh_opens_a_shell(two_nodes: Project) -> None:
    """On the head, or on the node that is named."""
    nodes = json.loads(two_nodes.run("status", "--json").stdout)["nodes"]
    (pins,) = (two_nodes.directory / "state").rglob("known_hosts")
    two_nodes.run("exec", "--", "true")
    before = pins.read_text()
    pins.unlink()  # as on another machine: they are verified and pinned first
    script = "tty; echo addr=$(hostname -I); echo agent=[$SSH_AUTH_SOCK]; exit 7\n"
    for words, node in (["ssh"], nodes[0]), (["ssh", "node-1"], nodes[1]):
        shown = two_nodes.run_at_terminal(*words, typed=script)
        assert shown.code == 7, shown
        assert f"addr={node['private_ip']}" in shown.raw
        assert "/dev/pts/" in shown.raw
        assert "agent=[]" in shown.raw
    assert pins.read_text() == before


def test_ssh_runs_a_command_in_the_environment(two_nodes: Project) -> None:
    done = two_nodes.run("ssh", "node-1", "python", "-c", "import sys; print(sys.prefix, sys.argv[1])", "a  'b'")
    assert re.fullmatch(r"/home/ubuntu/\.cluster/\S+ a  'b'\n", done.stdout)
    assert two_nodes.run("ssh", "node-1", "echo a  'b  c'; exit 3", code=3).stdout == "a b  c\n"  # a line, as with ssh
    assert two_nodes.run("ssh", "node-0", "--", "sh", "-c", "hostname -I; exit 7", code=7).stdout.strip()
    piped = subprocess.run([CLUSTER, "ssh", "node-0", "cat"], cwd=two_nodes.directory, env=two_nodes.environment(),
                           input=b"in\0out", capture_output=True, check=True)  # fmt: skip
    assert piped.stdout == b"in\0out"
    typed = subprocess.run([CLUSTER, "ssh", "node-0"], cwd=two_nodes.directory, env=two_nodes.environment(),
                           input=b"echo a; exit 3\n", capture_output=True, check=False)  # fmt: skip
    assert (typed.returncode, typed.stdout, typed.stderr) == (3, b"a\n", b"")


def test_a_port_is_forwarded(two_nodes: Project) -> None:
    """test_ssh_words.py has tunnels that are lost, test_notebook.py kills the ssh of one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with two_nodes.following("forward", f"{port}:22", "node-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}/\n"
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            assert connection.recv(100).startswith(b"SSH-2.0")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_files_are_copied_to_a_node_and_back(two_nodes: Project, tmp_path: Path) -> None:
    (tmp_path / "to" / "below").mkdir(parents=True)
    (tmp_path / "to" / "a b:c").write_text("text")
    (tmp_path / "to" / "below" / "x").write_bytes(bytes(range(256)))
    two_nodes.run("cp", "-r", str(tmp_path / "to"), "node-1:copied")
    assert two_nodes.run("exec", "--node", "node-1", "--", "cat", "copied/a b:c").stdout == "[node-1] text\n"
    two_nodes.run("cp", "node-1:copied/a b:c", "node-1:copied/below", str(tmp_path))
    assert (tmp_path / "a b:c").read_text() == "text"
    assert (tmp_path / "below" / "x").read_bytes() == bytes(range(256))
    missing = two_nodes.run("cp", "node-1:no-such-file", str(tmp_path), code=1)
    assert "No such file" in missing.stderr
    two_nodes.run("exec", "--", "rm", "-rf", "copied")


def test_ssh_config_is_for_every_program(two_nodes: Project, tmp_path: Path) -> None:
    config = tmp_path / "ssh config"
    config.write_text(two_nodes.run("ssh-config").stdout)
    assert "# vscode://vscode-remote/ssh-remote+demo-node-1/home/ubuntu\n" in config.read_text()
    for name in ("demo-node-0", "demo-node-1"):
        done = subprocess.run(["ssh", "-F", str(config), name, "id -un"], capture_output=True, text=True, check=True)
        assert done.stdout == "ubuntu\n"
    (tmp_path / "file").write_text("text")
    subprocess.run(["scp", "-F", str(config), str(tmp_path / "file"), "demo-node-1:file"], check=True)
    assert two_nodes.run("ssh", "node-1", "cat", "file").stdout == "text"


HOSTILE = """\
Host *
    ProxyCommand touch PROXIED; false
    HostName 192.0.2.1
    User nobody
    Port 2222
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    ForwardAgent yes
    IdentityFile ~/.ssh/id_ed25519
    PermitLocalCommand yes
    LocalCommand touch PROXIED
    NoSuchKeyword at all
"""
OVER_HOME = (
    'mount -t tmpfs none "$1" && mkdir "$1/up" "$1/work" && cp -a "$2" "$1/up/.ssh" && '
    'mount -t overlay none -o "lowerdir=$HOME,upperdir=$1/up,workdir=$1/work" "$HOME" && shift 2 && exec "$@"'
)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[tuple[str, ...], dict[str, str], Callable[[], list[str]]]]:
    """Creates a ~/.ssh and an agent that would break or weaken every connection.

    Yields the words that run a command with them, its environment, and a function that lists what they would leave in
    its output. The folder is mounted over the real ~/.ssh, in a mount namespace, because OpenSSH ignores $HOME.
    """
    folder, mount, proxied = tmp_path / "ssh", tmp_path / "mount", tmp_path / "proxied"
    folder.mkdir(mode=0o700)
    mount.mkdir()
    (folder / "config").write_text(HOSTILE.replace("PROXIED", str(proxied)))
    for name in ("id_ed25519", "agents"):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)), check=True)
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(("ssh-agent", "-D", "-a", socket), stdout=subprocess.DEVNULL)
    until(lambda: Path(socket).exists(), "no agent")
    env = {"SSH_AUTH_SOCK": socket, "HOME": os.path.expanduser("~root")}
    subprocess.run(("ssh-add", "-q", str(folder / "agents")), env={**os.environ, **env}, check=True)
    prints = [
        subprocess.run(("ssh-keygen", "-lf", str(folder / name)), capture_output=True, text=True, check=True).stdout
        for name in ("id_ed25519", "agents")
    ]
    wrap = ("unshare", "--mount", "sh", "-c", OVER_HOME, "sh", str(mount), str(folder))
    yield wrap, env, lambda: [str(proxied)] * proxied.exists() + [text.split()[1] for text in prints]
    agent.terminate()
    agent.wait()


def test_the_users_own_ssh_configuration_is_not_used(
    two_nodes: Project, hostile: tuple[tuple[str, ...], dict[str, str], Callable[[], list[str]]]
) -> None:
    wrap, env, find_known = hostile
    project = Project(two_nodes.directory, env=env)
    sizes = two_nodes.run("exec", "--node", "node-0", "--", "sudo", "stat", "-c", "%s", "/var/log/auth.log").stdout
    done = subprocess.run(
        [*wrap, CLUSTER, "exec", "--", "sh", "-c", "cat ~/.ssh/config 2>/dev/null; echo agent=[$SSH_AUTH_SOCK]"],
        cwd=project.directory,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == ["[node-0] agent=[]", "[node-1] agent=[]"]
    typed = subprocess.run(
        [*wrap, "script", "-qefc", f"{CLUSTER} ssh", "/dev/null"],
        cwd=project.directory,
        env={**project.environment(), "TERM": "dumb"},
        input="echo agent=[$SSH_AUTH_SOCK] user=$(id -un); exit 7\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (typed.returncode, "agent=[] user=ubuntu" in typed.stdout) == (7, True), typed.stdout
    log = two_nodes.run(
        "exec", "--node", "node-0", "--", "sudo", "tail", "-c", f"+{sizes.split()[1]}", "/var/log/auth.log"
    ).stdout
    known = find_known()
    assert "Accepted publickey for ubuntu" in log
    assert [word for word in known if word in log or Path(word).exists()] == []
