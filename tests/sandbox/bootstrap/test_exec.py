"""`cluster exec` on real hosts: its output, its exit code, and that it leaves no process."""

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from job_steps import hosts_of
from project import CLUSTER, Project
from waits import until

pytestmark = pytest.mark.sandbox

ON_NODE_1 = "[ $(cat /proc/sys/kernel/hostname | tail -c 2) = 5 ]"
"""EC2 names hosts by their address: the first two of a subnet are .4 and .5."""
# Children that are hard to end: in another session, orphaned, ignoring signals, root's, stopped, without environment.
STUBBORN = """
setsid sleep TOKEN &
(setsid sh -c 'trap "" TERM HUP INT; sleep TOKEN; sleep TOKEN' </dev/null >/dev/null 2>&1 &)
sudo sleep TOKEN &
sleep TOKEN & kill -STOP $!
env -i /bin/sleep TOKEN &
echo begun
wait
"""


def find_sleepers(token: str) -> list[int]:
    """Processes on all hosts with that word on their command line, except `cluster exec` on this machine."""
    lines = {process.pid: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    return [pid for pid, words in lines.items() if any(token in word for word in words) and "exec" not in words]


@pytest.fixture
def token() -> Iterator[str]:
    """The seconds that a test's processes sleep, which identify them."""
    token = f"98765.{uuid.uuid4().int % 10**9}"
    yield token
    for pid in find_sleepers(token):
        os.kill(pid, signal.SIGKILL)


def test_lines_and_failures_name_their_node(two_nodes: Project, token: str) -> None:
    wait = f"until [ -e /tmp/{token} ]; do sleep 0.1; done"
    script = f"echo out; echo err >&2; printf 'no newline'; if {ON_NODE_1}; then exit 7; fi; {wait}; exit 3"
    may_end = hosts_of(two_nodes)["node-0"].root / "tmp" / token
    shown: list[str] = []
    with two_nodes.following("exec", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        # An incomplete line is printed when its node has ended, so node-1 has ended.
        while "[node-1] no newline\n" not in shown:
            shown.append(process.stdout.readline())
            assert shown[-1], shown
        may_end.touch()
        shown += process.communicate(timeout=60)[0].splitlines(keepends=True)
    may_end.unlink()
    output = two_nodes.messages.read_text()
    assert process.returncode == 7, output
    assert sorted("".join(shown).splitlines()) == sorted(
        f"[node-{n}] {t}" for n in (0, 1) for t in ("out", "no newline")
    )
    lines = output.splitlines()
    assert sorted(lines[:2]) == ["[node-0] err", "[node-1] err"]
    assert lines[2:] == ["error: the command failed on 2 of 2 nodes:", "  node-0: exit code 3", "  node-1: exit code 7"]


def test_json_is_one_array(two_nodes: Project) -> None:
    done = two_nodes.run("exec", "--json", "--", "sh", "-c", f"echo hi; {ON_NODE_1} && kill -9 $$; true", code=137)
    rest = {"stdout": "hi\n", "stderr": "", "cut": False, "error": None}
    assert json.loads(done.stdout) == [
        {"node": "node-0", "exit_code": 0, **rest},
        {"node": "node-1", "exit_code": 137, **rest},
    ]
    assert "error: the command failed on 1 of 2 nodes:\n  node-1: ended by SIGKILL (exit code 137)\n" in done.stderr


def test_the_environments_python_comes_first(two_nodes: Project) -> None:
    done = two_nodes.run("exec", "--", "sh", "-c", "command -v python; pwd; cat; umask")
    assert done.stdout.count("/.cluster/env/") == 2
    assert "[node-0] /home/ubuntu\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["exec"], 2, "there is no command to run"),
        (["exec", "--node", "node-7", "--", "true"], 1, "has no node node-7\n  try: one of: node-0, node-1\n"),
        (["exec", "--", "no-such-program"], 127, "exec: no-such-program: not found"),
        (["exec", "--", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
    ],
)
def test_commands_that_cannot_start(two_nodes: Project, words: list[str], code: int, message: str) -> None:
    assert message in two_nodes.run(*words, code=code).stderr


def run_bytes(project: Project, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [CLUSTER, "exec", "--node", "node-0", "--", *words],
        cwd=project.directory,
        env=project.environment(),
        capture_output=True,
        timeout=120,
        check=True,
    )


def test_long_lines_and_binary_output_arrive_whole(two_nodes: Project) -> None:
    program = "import os; d = bytes(range(256)) * 5000; os.write(1, b'x' * 3000000 + b'\\n' + d); os.write(2, d)"
    done = run_bytes(two_nodes, "python3", "-c", program)
    junk = bytes(range(256)) * 5000
    assert done.stdout == b"".join(b"[node-0] %s\n" % line for line in (b"x" * 3000000 + b"\n" + junk).split(b"\n"))
    assert done.stderr == b"".join(b"[node-0] %s\n" % line for line in junk.split(b"\n"))


def test_background_processes_do_not_delay_the_command(two_nodes: Project, token: str) -> None:
    two_nodes.run("exec", "--", "sh", "-c", f"setsid sleep {token} & yes & echo done", timeout_s=60)
    # As with ssh, they keep running. Before exec, a child has the command line of its parent.
    until(lambda: len(find_sleepers(token)) == 2, "not one process on each node is left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_every_signal_ends_the_command_on_all_nodes(two_nodes: Project, token: str, number: signal.Signals) -> None:
    with two_nodes.following("exec", "--", "sh", "-c", STUBBORN.replace("TOKEN", token)) as process:
        until(lambda: len(find_sleepers(token)) >= 2 * 7, "not all of it starts")
        process.send_signal(number)
        process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (process.returncode, two_nodes.messages.read_text()) == (130, "\nerror: interrupted\n")
        assert not find_sleepers(token)
    until(lambda: not find_sleepers(token), "it still runs")


def test_a_flood_of_output_ends_at_once_and_takes_little_memory(two_nodes: Project, token: str) -> None:
    """The output is not read, as on a stopped terminal."""
    with two_nodes.running("exec", "--", "sh", "-c", f"sleep {token} & exec yes $(seq 1 1000)") as process:
        until(lambda: len(find_sleepers(token)) >= 2, "it does not start")
        time.sleep(2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) < 400_000
        process.send_signal(signal.SIGINT)
        until(lambda: not find_sleepers(token), "the flood keeps it from ending")
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_closed_stdout_ends_the_command(two_nodes: Project, token: str) -> None:
    with two_nodes.following("exec", "--", "sh", "-c", f"sleep {token} & exec yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(9) in {"[node-0] ", "[node-1] "}
        process.stdout.close()
        process.wait(timeout=60)
        assert not find_sleepers(token)
    assert two_nodes.messages.read_text() == ""
    assert process.returncode == 1


def test_an_unreachable_node_is_named_and_the_others_shown(two_nodes: Project) -> None:
    """The node is unreachable because its host key has changed, which is an immediate error."""
    (pins,) = (two_nodes.directory / "state").rglob("known_hosts")
    before = pins.read_text()
    lines = before.splitlines()
    instance = json.loads(two_nodes.run("status", "--json").stdout)["nodes"][1]["instance_id"]
    (own,) = (line for line in lines if line.startswith(instance))
    (other,) = (line for line in lines if not line.startswith(instance))
    pins.write_text(f"{other}\n{own.rpartition(' ')[0]} {other.split()[2]}\n")
    try:
        done = two_nodes.run("exec", "--", "sh", "-c", "echo here; exit 3", code=1)
        shell = two_nodes.run("ssh", "node-1", code=1)
    finally:
        pins.write_text(before)
    assert done.stdout == "[node-0] here\n"
    assert "error: the command failed on 2 of 2 nodes:\n  node-0: exit code 3\n  node-1 (i-" in done.stderr
    assert "its host key has changed" in done.stderr
    assert "its host key has changed" in shell.stderr


def test_a_lost_node_is_named(two_nodes: Project, token: str) -> None:
    """The node's ssh sessions end, as in a reboot."""
    script = f"if {ON_NODE_1}; then pkill -u ubuntu ^sshd; exec sleep {token}; fi; sleep 1; echo done"
    done = two_nodes.run("exec", "--", "sh", "-c", script, code=1)
    assert done.stdout == "[node-0] done\n"
    until(lambda: not find_sleepers(token), "it still runs")
    assert "error: the command failed on 1 of 2 nodes:\n  node-1 (" in done.stderr
    assert "the connection is lost" in done.stderr
