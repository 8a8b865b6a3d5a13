"""What is left on a host when a role's program is killed, or the reaper above it: nothing, whatever it is by then."""

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

import pytest

from bootstrap.node import process_tree
from train.job.plan import new_job_id
from train.node import wire
from train.node.programs import CODE_DIR, program_words

# A child of the worker's that has nothing of the job's any more: not its parent, session nor environment.
GOES, STAYS = "USR2", "TERM"  # the signals that it ignores
ENDS = (signal.SIGTERM, signal.SIGKILL)  # the first of them goes to who is spared only for a second of its two
STRANGER = "(env -i setsid sh -c 'trap \"\" {ignored}; echo $$ > {file}; exec sleep 600' &)"


@dataclass(kw_only=True)
class Role:
    """role.py at work. program: the pid of what runs below the reaper."""

    process: "subprocess.Popen[str]"
    job: str
    ours: socket.socket
    program: int
    worker: int
    strangers: list[int]

    @property
    def reaper(self) -> int:
        return self.process.pid

    def pids(self) -> list[int]:
        """All but the reaper's."""
        return [self.program, self.worker, *self.strangers]

    def end(self) -> int:
        """Wait until it has ended, and whatever it ran; what the reaper ended with, a signal as in subprocess."""
        code = self.process.wait(timeout=20)
        for pid in self.pids():
            gone(pid)
        return code

    def rest(self) -> list[str]:
        """What it said until the end of its stdout, without the signs of life."""
        return [line for line in self.process.stdout if "alive" not in line]


def gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while process_tree.start_time(pid) is not None:
        assert time.monotonic() < deadline, pid
        time.sleep(0.02)


def read_pid(path: Path) -> int:
    deadline = time.monotonic() + 10
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    return int(path.read_text())


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextmanager
def running(tmp_path: Path, *strangers: str, in_job: bool = False) -> Iterator[Role]:
    """A worker with strangers below it, named after the signal that they ignore.

    in_job: role.py itself has the job in its environment, as under launch.py.
    """
    files = [tmp_path / name for name in strangers]
    lines = [STRANGER.format(ignored=name, file=file) for name, file in zip(strangers, files, strict=True)]
    job = new_job_id()
    order = {"job": job, "role": "worker", "host": "node-0", "address": None, "launched": {}, "setup": None}
    order["commands"] = [["/bin/sh", "-c", "; ".join([*lines, "sleep 600"])]]
    order |= {"env": {}, "cwd": "/", "open_files": "auto", "p3": False, "silence_timeout_s": 15}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        program_words("role", python=sys.executable),
        stdin=theirs,
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
        finally:  # where a test has failed
            process.kill()
            ours.close()
            for pid in role.pids():
                if process_tree.start_time(pid) is not None:
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("number", "strangers"), [(signal.SIGKILL, (GOES, STAYS)), (signal.SIGUSR1, (GOES,))])
def test_the_reaper_of_a_program_that_was_killed_ends_all_of_it_and_ends_alike(
    tmp_path: Path, number: signal.Signals, strangers: tuple[str, ...]
) -> None:
    with running(tmp_path, *strangers) as role:
        os.kill(role.program, number)
        said = role.rest()
        assert all(process_tree.start_time(pid) is None for pid in role.strangers)  # the end of stdout comes last
        assert said == []
        assert role.end() == -number


def test_a_program_whose_reaper_was_killed_ends_the_job_and_tells_nobody_that_it_did(tmp_path: Path) -> None:
    with running(tmp_path, GOES) as role:
        other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: role.job}, "/")
        os.kill(role.reaper, signal.SIGKILL)
        assert role.rest() == []
        assert role.end() == -signal.SIGKILL
        assert -other.wait(timeout=20) in ENDS
        other.stdout.close()


def test_what_is_lost_first_is_not_hidden_by_what_a_role_ends_that_was_lost_itself(tmp_path: Path) -> None:
    """Its own ends at once, and what others run of the job only when nobody else has seen to that."""
    with running(tmp_path, GOES) as role:
        other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: role.job}, "/")
        before = time.monotonic()
        role.ours.close()
        gone(role.worker)
        assert -other.wait(timeout=20) in ENDS
        assert time.monotonic() > before + 1.0
        other.stdout.close()
        role.end()


def test_a_role_that_was_lost_waits_for_others_no_longer_than_they_are_there(tmp_path: Path) -> None:
    """And on a slow machine to the moment when it ends them itself, which is no other end."""
    with running(tmp_path) as role:
        command = ["/bin/sh", "-c", "trap '' TERM; echo; exec sleep 600"]
        other = process_tree.start(command, {**os.environ, process_tree.JOB_VARIABLE: role.job}, "/")
        assert other.stdout.readline() == b"\n"
        role.ours.close()
        gone(role.worker)
        other.kill()
        assert other.wait(timeout=10) == -signal.SIGKILL
        other.stdout.close()
        role.end()


def test_a_program_without_reaper_is_not_kept_from_ending_all_by_others_who_do(tmp_path: Path) -> None:
    with running(tmp_path, STAYS, in_job=True) as role:
        os.kill(role.reaper, signal.SIGKILL)
        assert role.rest() == []
        _, left = process_tree.end(role.job)
        assert left == []
        role.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_reaper_ends_the_program_and_all_of_it(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, GOES) as role:
        os.kill(role.reaper, number)
        assert role.end() == -number


def test_a_reaper_in_the_jobs_own_environment_is_not_ended_with_the_job(tmp_path: Path) -> None:
    """As under launch.py; that program's own end is told."""
    with running(tmp_path, GOES, in_job=True) as role:
        role.ours.close()
        (last,) = role.rest()
        assert json.loads(last)["ended"]
        assert role.end() == 143


def test_what_else_ends_a_job_here_ends_all_of_it_too(tmp_path: Path) -> None:
    """`role.py end`, or the supervisor, where the reaper and its program have the job in their environment."""
    with running(tmp_path, STAYS, in_job=True) as role:
        _, left = process_tree.end(role.job)
        assert left == []
        role.end()


def test_of_a_reaper_and_a_program_that_are_killed_at_once_the_job_can_be_found(tmp_path: Path) -> None:
    with running(tmp_path, GOES) as role:
        for pid in (role.reaper, role.program):
            os.kill(pid, signal.SIGKILL)
        gone(role.worker)
        other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: role.job}, "/")
        command = program_words("role", "end", role.job, python=sys.executable)
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
        assert other.wait(timeout=10) == -signal.SIGTERM
        other.stdout.close()
        for pid in role.strangers:  # nobody finds them any more: this is why there is a reaper
            os.kill(pid, signal.SIGKILL)
            gone(pid)


def test_where_no_process_can_be_started_any_more_that_is_said() -> None:
    program = f"""
import os, resource, sys
sys.path[:0] = {[CODE_DIR, *sys.path]!r}
from train.node.role import role
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.getuid() == 0:
    os.setuid(65534)  # root has no such limit
sys.argv[1:] = []
role.main()
"""
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    said = "cannot start another process: [Errno 11] Resource temporarily unavailable\n"
    assert (done.returncode, done.stderr) == (1, said)
