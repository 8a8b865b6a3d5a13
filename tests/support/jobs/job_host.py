"""A job's node programs on this machine, with their own home, an `ssh` that runs commands here, and a fake launch.py.

MXNet's launch.py is in its wheel, which no unit test installs. Like it, the fake starts a scheduler, and servers and
workers by `ssh HOST` with the same arguments.
"""

import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import patch

import pytest

from job_forms import nest_order
from node import jobs
from node.engines import ENGINES
from node.programs import program_words
from node.setup import process_tree
from waits import until

TRACKER = """
class PSTracker(object):
    def __init__(self, port=9091, **_):
        self.port = port


def get_host_ip(_=None):
    return "elsewhere"
"""
LAUNCH = r"""
import argparse, os, subprocess, sys, threading
from dmlc_tracker import tracker

parser = argparse.ArgumentParser()
parser.add_argument("-n", type=int)
parser.add_argument("-s", type=int)
parser.add_argument("-H", dest="hosts")
parser.add_argument("--launcher")
parser.add_argument("--p3", action="store_true")
parser.add_argument("command", nargs="+")
args, more = parser.parse_known_args()
command = " ".join(args.command + more)
ps = tracker.PSTracker()
env = dict(DMLC_NUM_WORKER=args.n, DMLC_NUM_SERVER=args.s, DMLC_PS_ROOT_URI=tracker.get_host_ip(),
           DMLC_PS_ROOT_PORT=ps.port)
scheduler = subprocess.Popen(command, shell=True, executable="/bin/bash",
                             env=dict(os.environ, DMLC_ROLE="scheduler", **{k: str(v) for k, v in env.items()}))
hosts = open(args.hosts).read().split() if args.hosts else ["127.0.0.1"]
for i in range(args.n + args.s):
    env["DMLC_ROLE"] = "server" if i < args.s else "worker"
    env["DMLC_NODE_HOST"] = host = hosts[i % len(hosts)]
    exports = "".join("export %s=%s; " % (k, v) for k, v in env.items())
    prog = "ssh -o StrictHostKeyChecking=no %s -p 22 '%s cd /; %s'" % (host, exports, command)
    if args.launcher == "local":
        prog = exports + command
    threading.Thread(target=subprocess.call, args=(prog,), kwargs={"shell": True}, daemon=True).start()
sys.exit(0 if scheduler.wait() == 0 else 1)
"""
# Runs its last argument here, without the job's variable, which sshd would not pass on either. Hosts in the file
# `refused` next to it do not answer. Like ssh, it fails without a message if the command is killed.
SSH = """#!/bin/bash
host="${@: -2:1}"
if grep -qsx "$host" "$(dirname "$0")/refused"; then
    echo "ssh: connect to host $host port 22: Connection refused" >&2
    exit 255
fi
exec 3>&2 2>/dev/null  # where bash says "Killed"
env -u CLUSTER_JOB_ID /bin/sh -c "${@: -1}" 2>&3 3>&-
code=$?
exit $((code < 128 ? code : 255))
"""
# One role of a job. The variable of its role has its commands: WORKER="exit 3", SERVER="sleep 100". By default servers
# and scheduler `attend` the workers: like ps-lite's, they end after all of them.
ROLE = """
attend() {
    shopt -s nullglob  # bash counts by itself, many times a second
    for ((ended = 0; ended < DMLC_NUM_WORKER; )); do
        set -- "$HOME/done-$CLUSTER_JOB_ID"-*
        ended=$#
        ((ended >= DMLC_NUM_WORKER)) || sleep 0.05
    done
}
case $DMLC_ROLE in
scheduler) eval "${SCHEDULER:-attend}";;
server) eval "${SERVER:-attend}";;
*) trap 'touch "$HOME/done-$CLUSTER_JOB_ID-$$"' EXIT; eval "${WORKER:-exit 0}";;
esac
"""


def job_id(number: int) -> str:
    """A job id of this test process only, since the agent ends every process with this id in its environment."""
    return f"job-{number}-{os.getpid()}"


@dataclass(kw_only=True)
class LocalHead:
    """A head that is also all other nodes. home: its user's home.

    python: the Python of the environment and of the runtime: a script that tests change, and that stays sys.executable.
    """

    home: Path
    python: str

    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "CLUSTER_SSH": str(self.home / "ssh")}

    def order(self, *command: str, job: str = job_id(1), **more: Any) -> dict[str, Any]:
        """An order for two workers and a server on two nodes."""
        hosts = [{"name": f"node-{i}", "ip": f"127.0.0.{i + 1}", "instance_id": f"i-{i}"} for i in range(2)]
        fields = {"job": job, "name": "name", "python": self.python, "workers": 2, "servers": 1, "hosts": hosts}
        fields |= {
            "lines": [host["name"] for host in hosts],
            "cwd": str(self.home),
            "env": {},
            "library": "mxnet",
        }
        fields |= {"command": list(command or ("/bin/bash", "-c", ROLE)), "code": "c", "project": None, "owner": "me"}
        return {**fields, **more}

    def ask(self, *words: str, order: dict[str, Any] | None = None, line: Any = None) -> list[dict[str, Any]]:
        """Runs jobs.py to its end, in a fork of this process, which has imported it.

        Returns its answers without keep-alives. order, or line: its input on stdin.
        """
        line = line if order is None else place_processes(order)
        with TemporaryFile() as given, TemporaryFile() as messages, TemporaryFile() as complained:
            given.write(b"" if line is None else json.dumps(line).encode() + b"\n")
            given.seek(0)
            with patch.object(sys, "executable", self.python):  # as if the runtime's Python ran it
                ended = run_forked(words, self.env(), [file.fileno() for file in (given, messages, complained)])
            messages.seek(0)
            complained.seek(0)
            complaints = complained.read().decode()
            assert (ended, complaints) == (0, ""), complaints
            return [message for line in messages if "alive" not in (message := json.loads(line))]

    @contextmanager
    def asking(self, *words: str, order: dict[str, Any] | None = None) -> Iterator["subprocess.Popen[str]"]:
        """Starts jobs.py; its stdout is a pipe."""
        with subprocess.Popen(
            [self.python, *program_words("jobs", *words)[1:]],
            env=self.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            process.stdin.write("" if order is None else json.dumps(place_processes(order)) + "\n")
            process.stdin.close()
            yield process
            process.kill()

    def run(self, order: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Submits a job and follows it to its end; returns its result and its log."""
        answer, *log = self.ask("submit", "--follow", order=order)
        assert "job" in answer, answer
        assert not self.processes(order["job"])
        result: dict[str, Any] = log[-1]["result"]
        return result, log

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.ask("follow", job_id(1), "0")[-1]["result"]
        return result

    def record(self, job: str = job_id(1)) -> dict[str, Any]:
        """A job's record, with the keys of its spec beside the others."""
        record: dict[str, Any] = json.loads((self.folder(job) / "record.json").read_text())
        return {**record["spec"], **record}

    def folder(self, job: str = job_id(1)) -> Path:
        return self.home / ".cluster" / "jobs" / job

    def processes(self, job: str = job_id(1)) -> list[str]:
        """The command lines of a job's processes, including its supervisor and the supervisor's clients."""
        wanted = f"CLUSTER_JOB_ID={job}".encode()
        return [words for _, words, env in processes() if wanted in env and self._is_home(env) and words]

    def pid_of(self, pattern: str) -> int:
        """The pid of a process of this home whose command line matches, and whose parent's does not.

        The lowest pid need not be the oldest process, because pids begin again at 1.
        """

        def find() -> int:
            found = {pid for pid, words, env in processes() if re.search(pattern, words) and self._is_home(env)}
            return next((pid for pid in sorted(found) if parent_of(pid) not in found), 0)

        return int(until(find, pattern))

    def _is_home(self, env: Sequence[bytes]) -> bool:
        return f"HOME={self.home}".encode() in env

    def wait_for(self, text: str, job: str = job_id(1), count: int = 1) -> None:
        """Waits until the log has a text `count` times."""
        until(lambda: self.events(job).count(text) >= count, text)

    def events(self, job: str = job_id(1)) -> str:
        path = self.folder(job) / "events"
        return path.read_text() if path.exists() else ""

    def refuse(self, address: str) -> None:
        (self.home / "refused").write_text(address + "\n")

    def kill_supervisor(self, job: str = job_id(1)) -> None:
        """Kills a job's supervisor, if it still runs, and waits until it has ended and released its lock."""
        known = self.record(job)["supervisor"]

        def has_ended() -> bool:
            if process_tree.start_time(known["pid"]) != known["start_time"]:  # no process, or another one
                return True
            with suppress(ProcessLookupError):
                os.kill(known["pid"], signal.SIGKILL)
            return False

        until(has_ended, known)

    def clean_up(self) -> None:
        """Ends all running supervisors, and the processes of those that were killed."""
        unended = []
        for path in (self.home / ".cluster" / "jobs").glob("*/record.json"):
            record = json.loads(path.read_text())
            if record.get("supervisor"):  # the supervisor of an ended job may be about to end
                self.kill_supervisor(path.parent.name)
            if record["ended_at"] is None:
                unended.append(record)
        if unended:
            self.ask("list")


def run_forked(words: Sequence[str], env: dict[str, str], files: Sequence[int]) -> int:
    """Runs jobs.py with these files as its stdin, stdout and stderr; returns its exit code.

    Raises AssertionError after 60 s.
    """

    def run() -> None:
        gc.freeze()  # otherwise this process could complain when it collects objects of earlier tests
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w", buffering=1)  # pytest has replaced them
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["jobs", *words]
        sys.exit(jobs.main())

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    assert code is not None, f"jobs {' '.join(words)} did not end"
    return code


def parent_of(pid: int) -> int:
    """The pid of a process's parent; 0 if the process has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def processes() -> Iterator[tuple[int, str, list[bytes]]]:
    """(pid, command line, environment) of all processes that can be read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(entry.name), words, (entry / "environ").read_bytes().split(b"\0")


def place_processes(order: dict[str, Any]) -> dict[str, Any]:
    """The order, with the numbers of processes on its hosts, as its engine places them."""
    head = order["hosts"][0]["name"]
    placed = ENGINES[order.get("launcher", "ssh")].place(
        order.get("lines") or [head], head=head, workers=order["workers"], servers=order["servers"]
    )
    hosts = [
        {**host, "workers": placed["worker", host["name"]], "servers": placed["server", host["name"]]}
        for host in order["hosts"]
    ]
    return nest_order({**order, "hosts": hosts})


def log_has(text: str, *, meanwhile: str = "") -> str:
    """Shell code of a job that waits until its log contains a text."""
    return f"until grep -qF '{text}' ~/.cluster/jobs/$CLUSTER_JOB_ID/events; do {meanwhile} sleep 0.05; done; "


def lines_of(log: Sequence[dict[str, Any]], role: str | None = None) -> list[str]:
    """The lines of output in a log, of one role or all."""
    numbers = {event["p"] for event in log if role is not None and event.get("role") == role}
    return [event["line"] for event in log if "line" in event and (role is None or event["p"] in numbers)]


def make_environment(folder: Path, packages: Path) -> Path:
    """A Python environment with the packages of a folder, and those of this process that the nodes' programs import.

    It leaves out typing_extensions, which is for programs that run longer, so that they start faster.
    """
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (site / "packages.pth").write_text(f"{packages}\n")
    for name in ("msgspec", "obstore", "psutil"):
        (site / name).symlink_to(Path(sysconfig.get_path("platlib"), name))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return folder


@pytest.fixture
def job_host(tmp_path: Path) -> Iterator[LocalHead]:
    packages = tmp_path / "packages"
    (packages / "mxnet" / "tools").mkdir(parents=True)
    (packages / "dmlc_tracker").mkdir()
    (packages / "dmlc_tracker" / "__init__.py").touch()
    (packages / "dmlc_tracker" / "tracker.py").write_text(TRACKER)
    (packages / "mxnet" / "tools" / "launch.py").write_text(LAUNCH)
    home = tmp_path / "a-home-with-a-path-that-is-longer-than-the-107-bytes-of-a-socket"
    environment = make_environment(tmp_path / "environment", packages)
    for path, text in (
        (home / "ssh", SSH),
        (tmp_path / "bin" / "python", f'#!/bin/bash\nexec -a "$0" {environment}/bin/python "$@"\n'),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name in ("lib", "pyvenv.cfg"):
        (tmp_path / name).symlink_to(environment / name)
    host = LocalHead(home=home, python=str(tmp_path / "bin" / "python"))
    yield host
    host.clean_up()
