"""role.py with a container engine: the content of a container, how it ends, and that the engine then lists none."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_podman import make_podman
from node import wire
from node.programs import program_words
from node.setup.process_tree import start_time
from train.job.plan import new_job_id
from waits import until

# Records each SIGTERM, and ends after the first.
COUNTS = """
import os, signal, sys, time
def note(*_):
    print("SIGTERM", flush=True)
    ended.append(1)
ended = []
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while not ended:
    time.sleep(0.01)
time.sleep(0.3)
print("over", flush=True)
"""


class Role:
    """A running role.py, as ssh runs it."""

    def __init__(self, process: "subprocess.Popen[str]", plug: socket.socket) -> None:
        self.process, self._plug = process, plug
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self._plug.sendall(wire.encode(message))

    def read_until(self, key: str, value: Any = None) -> Any:
        """Reads messages up to one with this key, and with this value if given; returns the value."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self.messages += [] if "alive" in message else [message]
            if key in message and value in (None, message[key]):
                return message[key]
        raise AssertionError(self.messages)

    @property
    def lines(self) -> list[str]:
        return [message["line"] for message in self.messages if "line" in message]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_podman(tmp_path / "engine")
    return tmp_path


@contextmanager
def role(home: Path, *words: str, job: str | None = None, **more: Any) -> Iterator[Role]:
    container = {"engine": [f"{home}/engine/podman"], "image": "sha256:ab", "path": "/usr/bin:/bin", **more}
    order: dict[str, Any] = {"job": job or new_job_id(), "role": "worker", "host": "node-0", "address": None}
    order |= {
        "launched": {},
        "commands": [list(words)],
        "env": {"SECRET_OF_JOB": "canary-1"},
        "cwd": str(home / "work"),
        "setup": None,
    }
    order |= {"launcher": "env", "open_files": "auto", "p3": False, "silence_timeout_s": 15, "container": container}
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        program_words("role", python=sys.executable), stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True
    ) as process:
        theirs.close()
        ours.sendall(wire.encode(order))
        try:
            yield Role(process, ours)
        finally:
            ours.close()
            process.wait(timeout=30)
    assert containers(home) == []


def containers(home: Path) -> list[str]:
    folder = home / "containers"
    return sorted(path.name for path in folder.iterdir() if not path.suffix) if folder.exists() else []


def calls(home: Path, verb: str) -> list[dict[str, Any]]:
    found = map(json.loads, (home / "calls").read_text().splitlines())
    return [call for call in found if call["words"][0] == verb]


def pid_of(name: str) -> int:
    """Waits for an engine's process in this test's home; returns its pid. name: the first word of its command line."""

    def find() -> int:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    env = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0] == name.encode() and f"HOME={os.environ['HOME']}".encode() in env:
                    return int(entry.name)
        return 0

    return int(until(find, name))


def test_a_program_in_a_container(home: Path) -> None:
    with role(home, "sh", "-c", 'echo "$SECRET_OF_JOB"; echo $$; sleep 1; exit 5') as running:
        assert running.read_until("exit") == 5
    assert running.lines[0] == "canary-1"
    assert {"started": int(running.lines[1])} in running.messages  # the pid of the program, not of the engine's client
    [call] = calls(home, "run")
    assert "canary-1" not in " ".join(call["words"])
    assert "PATH" not in {word.partition("=")[0] for word in call["words"]}  # the image's own PATH is used


def test_what_is_inside(home: Path) -> None:
    more: dict[str, Any] = {"mounts": [["~/data", "/data", True]], "shm_size": 1 << 30, "gpus": True}
    with role(home, "true", has_environment=True, **more) as running:
        running.read_until("exit")
    [call] = calls(home, "run")
    words = call["words"]
    volumes = [words[at + 1] for at, word in enumerate(words) if word == "--volume"]
    assert f"{home}/data:/data:ro" in volumes
    assert f"{home}/.cluster/home:{home}" in volumes
    assert f"{sys.prefix}:{sys.prefix}:ro" in volumes
    assert any(volume.endswith("/output") for volume in volumes)
    assert not any(".ssh" in volume or ".cluster/ssh" in volume for volume in volumes)
    assert words[words.index("--shm-size") + 1] == "1073741824b"
    assert "nvidia.com/gpu=all" in words


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_is_killed(home: Path, number: signal.Signals) -> None:
    with role(home, "sh", "-c", f"kill -{number.value} $$") as running:
        assert running.read_until("exit") == 128 + number
    assert running.messages[-1]["signal"] == number


def test_it_gets_sigterm_once(home: Path) -> None:
    with role(home, sys.executable, "-c", COUNTS) as running:
        running.read_until("line", "ready")
        running.send({"end": True})
        running.read_until("exit")
    assert running.lines == ["ready", "SIGTERM", "over"]
    assert running.messages[-1]["ended"] is True
    assert running.messages[-1].get("left") is None


def test_it_ends_when_the_supervisor_goes_away(home: Path) -> None:
    with role(home, "sleep", "1000") as running:
        pid = running.read_until("started")
    assert start_time(pid) is None


@pytest.mark.parametrize("name", ["podman", "conmon"])
def test_a_killed_engine_ends_the_program(home: Path, name: str) -> None:
    with role(home, "sleep", "1000") as running:
        pid = running.read_until("started")
        os.kill(pid_of(name), signal.SIGKILL)
        assert running.read_until("exit") == 137
    assert running.messages[-1]["why"] == f"{name}, which runs its container, was killed"
    assert start_time(pid) is None


def test_an_engine_that_cannot_start_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = home / "engine" / "client.py"
    script.write_text(script.read_text().replace('os.environ.get("PODMAN_FAILS")', "True"))
    with role(home, "true") as running:
        assert running.read_until("exit") == 125
    assert "Error: it does not start" in running.lines
    assert running.messages[-1]["why"] == "podman could not start its container"


def test_role_end_removes_what_a_killed_role_has_left(home: Path) -> None:
    job = new_job_id()
    with role(home, "sleep", "1000", job=job) as running:
        pid = running.read_until("started")
        # Kill both at once, as `pkill -9 -f role` does: no process is left to end the container.
        reaper = running.process.pid
        children = Path(f"/proc/{reaper}/task/{reaper}/children").read_text().split()
        for one in (reaper, *map(int, children)):
            os.kill(one, signal.SIGKILL)
        running.process.wait()
        done = subprocess.run(
            program_words("role", "end", job, python=sys.executable), capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == []
        assert start_time(pid) is None


def test_role_end_names_what_it_cannot_remove(home: Path) -> None:
    job = new_job_id()
    folder = home / ".cluster" / "jobs" / job
    folder.mkdir(parents=True)
    (folder / "engine").write_text(json.dumps(["/nonexistent/podman"]))
    words = program_words("role", "end", job, python=sys.executable)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0, "/nonexistent/podman does not say whether containers of the job remain"]]
