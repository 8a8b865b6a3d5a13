"""Set-ups by the real Distribution and real agents: kills, failures, and files from other nodes."""

import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from agent_steps import Nodes, StartAgent, entry, hold, script, start_agent
from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.transfer.distribute import Failure, SetUp, failure
from foundation.errors import ClusterError, ConnectError
from waits import until

__all__ = ["start_agent"]

SIZE = 3 << 20
HALF = SIZE // 2
SLACK = 500_000  # for the agents' own code, and bytes on their way to a killed node


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> BundleFile:
    path = tmp_path_factory.mktemp("files") / "big.bin"
    path.write_bytes(random.Random(2).randbytes(SIZE))
    return describe_file(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BundleFile:
    path = tmp_path_factory.mktemp("files") / "small.bin"
    path.write_bytes(b"small")
    return describe_file(path)


def at_half_time(nodes: Nodes, file: BundleFile) -> None:
    """Waits until all bytes that the gate lets through have reached every node."""
    assert nodes.gate.reached.wait(20)
    reached = nodes.all[0].arriving_bytes(file)
    until(lambda: all(node.arriving_bytes(file) >= reached for node in nodes.all), "half of it does not get through")


def kill(nodes: Nodes, *victims: int) -> None:
    for victim in victims:
        nodes.all[victim].agent.process.kill()


def test_killed_at_half_time(tmp_path: Path, file: BundleFile, small: BundleFile) -> None:
    victims = (0, 3)
    with Nodes(tmp_path, 5, gate_bytes=HALF) as nodes:
        nodes.start(*nodes.all, files=(file, small))
        at_half_time(nodes, file)
        kill(nodes, *victims)
        nodes.gate.open()
        errors = nodes.join()
        assert sorted(errors) == [f"node-{victim}" for victim in victims]
        for name, error in errors.items():
            assert isinstance(error, ConnectError)
            assert name in error.message
        for number, node in enumerate(nodes.all):
            assert (node.has(file) and node.has(small)) is (number not in victims)
        assert nodes.uploaded_bytes() < SIZE + SLACK


def test_killed_and_run_again(tmp_path: Path, file: BundleFile) -> None:
    with Nodes(tmp_path, 3, gate_bytes=HALF) as nodes:
        nodes.start(*nodes.all, files=(file,))
        at_half_time(nodes, file)
        kill(nodes, 0, 1, 2)
        nodes.gate.open()
        assert len(nodes.join()) == 3
    with Nodes(tmp_path, 3) as nodes:
        nodes.start(*nodes.all, files=(file,))
        assert nodes.join() == {}
        assert all(node.has(file) for node in nodes.all)
        assert nodes.uploaded_bytes() < HALF + SLACK


def test_a_complete_node_serves_the_others(tmp_path: Path, file: BundleFile, small: BundleFile) -> None:
    """The complete node is woken before the uplink is used, and only once."""
    with Nodes(tmp_path, 3) as nodes:
        idle, taker, other = nodes.all
        hold(idle.home, file.path.read_bytes(), file.name)
        nodes.distribution.offer(idle, SetUp(python=sys.executable, files=(), holds={file.sha256}))
        nodes.start(taker, other, files=(small, file))
        assert nodes.join() == {}
        assert taker.has(file) and other.has(small)  # noqa: PT018
        assert nodes.uploaded_bytes() < SLACK
        assert len(idle.channels) == 1


def test_a_full_disk(tmp_path: Path, file: BundleFile) -> None:
    with Nodes(tmp_path, 3) as nodes:
        nodes.all[0].limit = "ulimit -f 1000"
        nodes.start(*nodes.all, files=(file,))
        [(name, error)] = nodes.join().items()
        assert name == "node-0"
        assert "node-0: " in str(error)
        assert "File too large" in str(error)
        assert [node.has(file) for node in nodes.all] == [False, True, True]
        assert not any((nodes.all[0].home / ".cluster" / "files").rglob("*.bin"))
    with Nodes(tmp_path, 3) as nodes:
        nodes.start(*nodes.all, files=(file,))
        assert nodes.join() == {}
        assert all(node.has(file) for node in nodes.all)


def test_damaged_on_this_machine(tmp_path: Path, file: BundleFile) -> None:
    path = tmp_path / file.name
    data = bytearray(file.path.read_bytes())
    data[HALF] ^= 1
    path.write_bytes(data)
    damaged = BundleFile(path=path, sha256=file.sha256, size_bytes=file.size_bytes)
    with Nodes(tmp_path, 3) as nodes:
        nodes.start(*nodes.all, files=(damaged,))
        errors = nodes.join()
        assert len(errors) == 3
        assert all(isinstance(error, ClusterError) and str(path) in error.message for error in errors.values()), errors
        assert not path.exists()
        assert not any(any((node.home / ".cluster" / "files").rglob("*.bin")) for node in nodes.all)


@pytest.mark.parametrize(
    ("text", "code", "lines"),
    [
        ("seq 9999; echo two >&2; exit 3", 3, [*(str(n) for n in range(9981, 10000)), "two"]),
        ("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", 1, ["x" * 1000]),
        ("printf '10%%\\r50%%\\r\\377\\r'; exit 1", 1, ["\ufffd"]),
        ("kill -9 $$", 137, ["Killed"]),
        ("cat; pwd -P; sleep 60 & exit 4", 4, ["HOME"]),  # the agent does not wait for background processes
        (": >begun; exec sleep 60", -9, ["(killed after 0.2 s without output)"]),
    ],
)
def test_failing_scripts(home: Path, start_agent: StartAgent, text: str, code: int, lines: list[str]) -> None:
    agent = start_agent(home, tasks=[script(text, silence_s=0.2 if "begun" in text else 60)])
    failed = agent.expect("listening", "begun", "failed")
    shown = [str(home.resolve()) if line == "HOME" else line for line in lines]
    assert (failed["what"], failed["exit_code"], failed["output"]) == ("a script", code, shown)
    assert agent.process.wait() == 1


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_a_silent_script_is_reported(home: Path, start_agent: StartAgent) -> None:
    agent = start_agent(home, tasks=[script("printf 'Sure? [y/n] '; sleep 60", silence_s=1, notice_s=0.2)])
    agent.expect("listening", "begun")
    assert agent.expect("notice") == "a script has printed nothing for 0 s, after: Sure? [y/n] "
    assert agent.expect("failed")["output"] == ["Sure? [y/n] ", "(killed after 1 s without output)"]


@pytest.mark.parametrize("when", ["locked out", "in an upload"])
def test_an_agent_ends_with_its_stdin(home: Path, start_agent: StartAgent, when: str) -> None:
    data = b"x" * (1 << 20)
    other = start_agent(home)
    other.expect("listening", "done")
    if when == "in an upload":
        other.hang_up()
    agent = start_agent(home, entry(data))
    if when == "in an upload":
        agent.expect("listening")
        agent.take_from()
        agent.expect("stuck")
        agent.upload(data, until=1000)
    assert agent.hang_up() == 0
    assert not list(home.glob(".cluster/files/*"))


def test_a_running_script_finishes(home: Path, start_agent: StartAgent) -> None:
    """Neither the end of stdin nor the agent's death ends a script, and the next command waits for it."""
    for kill_it in (False, True):
        agent = start_agent(
            home, tasks=[script("echo begun >log; while [ ! -e go ]; do sleep 0.05; done; echo whole >>log")]
        )
        agent.expect("listening", "begun")
        until(lambda: (home / "log").exists() and (home / "log").read_text() == "begun\n", "it does not begin")
        if kill_it:
            agent.send(signal.SIGKILL)
        else:
            agent.shutdown_write()
        later = start_agent(home, tasks=[script("echo after >>log")])
        (home / "go").touch()
        later.expect("listening", "begun", "done")
        assert (home / "log").read_text() == "begun\nwhole\nafter\n"
        assert agent.process.wait() == (-9 if kill_it else 0)
        later.hang_up()
        for name in ("log", "go"):
            (home / name).unlink()


def test_set_ups_of_a_node_exclude_each_other(home: Path, start_agent: StartAgent) -> None:
    running = start_agent(home, entry(b"some"))
    running.expect("listening")
    locked_out = start_agent(home, lock_timeout_s=0.1)
    assert "another set-up of this node" in locked_out.expect("failed")["what"]
    assert locked_out.process.wait() == 1
    waiting = start_agent(home)
    running.send()
    waiting.expect("listening")


@pytest.mark.parametrize(
    ("message", "text", "hint"),
    [
        ({"what": "x: No space left on device", "exit_code": None, "output": []}, "node-1: x: No space", "free some"),
        ({"what": "s", "exit_code": 2, "output": ["a", "b"]}, "exit code 2 from: s\n  | a\n  | b", None),
        ({"what": "s", "exit_code": 2, "output": ["x: No space left on device (os error 28)"]}, "exit", "free some"),
        ({"what": "s", "exit_code": -9, "output": []}, "killed by signal 9: s\n  | (it printed nothing)", None),
    ],
)
def test_failure_reports(message: dict[str, Any], text: str, hint: str | None) -> None:
    error = failure("node-1", convert(message, Failure))
    assert text in error.message
    assert (error.hint or "").startswith(hint or "")
