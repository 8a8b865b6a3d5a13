"""No process is left on a host when a role's program, or the reaper above it, is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node import wire
from node.programs import CODE_DIR, program_words
from node.setup import process_tree
from train.job.plan import new_job_id
from waits import until

# A child of the worker without the job's parent, session and environment.
GOES, STAYS = "USR2", "TERM"  # the signals that a stranger ignores
ENDS = (signal.SIGTERM, signal.SIGKILL)  # which of them ends it depends on how long it was spared
STRANGER = "(env -i setsid sh -c 'trap \"\" {ignored}; echo $$ > {file}; exec sleep 600' &)"


@dataclass(kw_only=True)
class Role:
    """A running role.py. program: the pid of the reaper's child."""

    process: "subprocess.Popen[str]"
    job: str
    ours: socket.socket
    program: int
    worker: int
    strangers: list[int]

    @property
    def reaper(self) -> int:
        return self.process.pid

    @contextmanager
    def other(self, *command: str) -> Iterator[Any]:
        """Starts another process of the job, outside of the role."""
        env = {**os.environ, process_tree.JOB_VARIABLE: self.job}
        process = process_tree.start(command or ("sleep", "600"), env, "/")
        with process.stdout:
            yield process

    def pids(self) -> list[int]:
        """The pids of all processes except the reaper."""
        return [self.program, self.worker, *self.strangers]

    def end(self) -> int:
        """Waits until the role and its processes have ended.

        Returns the reaper's exit code, or its signal as in subprocess.
        """
        code = self.process.wait(timeout=20)
        for pid in self.pids():
            gone(pid)
        return code

    def rest(self) -> list[str]:
        """Reads the role's output to the end; returns the lines without keep-alives."""
        return [line for line in self.process.stdout if "alive" not in line]


def gone(pid: int) -> None:
    until(lambda: process_tree.start_time(pid) is None, pid)


def read_pid(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), path))


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextmanager
def running(tmp_path: Path, *strangers: str, in_job: bool = False) -> Iterator[Role]:
    """Runs a worker with strangers below it. strangers: the signals that they ignore.

    in_job: role.py itself has the job in its environment, as under launch.py.
    """
    files = [tmp_path / name for name in strangers]
    lines = [STRANGER.format(ignored=name, file=file) for name, file in zip(strangers, files, strict=True)]
    job = new_job_id()
    order: dict[str, Any] = {"job": job, "role": "worker", "host": "node-0", "address": None, "launched": {}}
    order |= {"setup": None, "commands": [["/bin/sh", "-c", "; ".join([*lines, "sleep 600"])]]}
    order |= {"env": {}, "cwd": "/", "open_files": "auto", "p3": False, "silence_timeout_s": 15}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        program_words("role", python=sys.executable),
        stdin=theirs.fileno(),
        stdout=subprocess.PIPE,
        text=True,
        env={**env, process_tree.JOB_VARIABLE: job} if in_job else env,
    ) as process:
        theirs.close()
        ours.sendall(wire.encode(order))
        worker = json.loads(process.stdout.readline())["started"]
        started = {"program": child_of(process.pid), "worker": worker, "strangers": [read_pid(file) for file in files]}
        role = Role(process=process, job=job, ours=ours, **started)
        try:
            yield role
        finally:  # needed if a test fails
            process.kill()
            ours.close()
            for pid in role.pids():
                if process_tree.start_time(pid) is not None:
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("number", "strangers"), [(signal.SIGKILL, (GOES, STAYS)), (signal.SIGUSR1, (GOES,))])
def test_the_reaper_of_a_killed_program_ends_all_of_it_and_ends_alike(
    tmp_path: Path, number: signal.Signals, strangers: tuple[str, ...]
) -> None:
    with running(tmp_path, *strangers) as role:
        os.kill(role.program, number)
        assert role.rest() == []
        assert all(process_tree.start_time(pid) is None for pid in role.strangers)  # stdout ends last
        assert role.end() == -number


def test_a_program_whose_reaper_was_killed_silently_ends_the_job(tmp_path: Path) -> None:
    with running(tmp_path, GOES) as role, role.other() as other:
        os.kill(role.reaper, signal.SIGKILL)
        assert role.rest() == []
        assert role.end() == -signal.SIGKILL
        assert -other.wait(timeout=20) in ENDS


def test_a_lost_role_ends_its_own_processes_first(tmp_path: Path) -> None:
    """It ends other processes of the job later, if no other program does.

    This way, the supervisor hears of the first loss first.
    """
    with running(tmp_path, GOES) as role, role.other() as other:
        before = time.monotonic()
        role.ours.close()
        gone(role.worker)
        assert -other.wait(timeout=20) in ENDS
        assert time.monotonic() > before + 1.0
        role.end()


def test_a_lost_role_does_not_wait_for_processes_that_have_ended(tmp_path: Path) -> None:
    """On a slow machine, the role itself may end the other process, with the same signal."""
    with running(tmp_path) as role, role.other("/bin/sh", "-c", "trap '' TERM; echo; exec sleep 600") as other:
        assert other.stdout.readline() == b"\n"
        role.ours.close()
        gone(role.worker)
        other.kill()
        assert other.wait(timeout=10) == -signal.SIGKILL
        role.end()


def test_a_program_without_reaper_and_another_end_the_job_together(tmp_path: Path) -> None:
    with running(tmp_path, STAYS, in_job=True) as role:
        os.kill(role.reaper, signal.SIGKILL)
        assert role.rest() == []
        _, left = process_tree.end(role.job)
        assert left == []
        role.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_reaper_ends_the_program(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, GOES) as role:
        os.kill(role.reaper, number)
        assert role.end() == -number


def test_a_reaper_with_the_job_in_its_environment_outlives_the_job(tmp_path: Path) -> None:
    """The job is in the reaper's environment under launch.py. The reaper still reports the program's end."""
    with running(tmp_path, GOES, in_job=True) as role:
        role.ours.close()
        (last,) = role.rest()
        assert json.loads(last)["ended"]
        assert role.end() == 143


def test_others_who_end_a_job_end_all_of_it(tmp_path: Path) -> None:
    """`role end` or the supervisor may end a job whose reaper and program have it in their environment."""
    with running(tmp_path, STAYS, in_job=True) as role:
        assert process_tree.end(role.job)[1] == []
        role.end()


def test_after_both_are_killed_at_once_the_job_is_still_found(tmp_path: Path) -> None:
    with running(tmp_path, GOES) as role, role.other() as other:
        for pid in (role.reaper, role.program):
            os.kill(pid, signal.SIGKILL)
        gone(role.worker)
        command = program_words("role", "end", role.job, python=sys.executable)
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
        assert other.wait(timeout=10) == -signal.SIGTERM
        for pid in role.strangers:  # no program can find these any more, hence the reaper
            os.kill(pid, signal.SIGKILL)
            gone(pid)


def test_a_process_limit_is_an_error() -> None:
    program = f"""
import os, resource, sys
sys.path[:0] = {[CODE_DIR, *sys.path]!r}
from node.agent import role
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.getuid() == 0:
    os.setuid(65534)  # root has no such limit
sys.argv[1:] = []
role.main()
"""
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    said = "cannot start another process: [Errno 11] Resource temporarily unavailable\n"
    assert (done.returncode, done.stderr) == (1, said)
