"""Whether a node is in use: all combinations of logins, jobs, notebooks, CPU and GPU, in an imitation of its root."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from node.lease.activity import Activity, IdleTime, Use

NOW = 1_800_000_000.0
TICKS = os.sysconf("SC_CLK_TCK")
SUPERVISOR = {"pid": 700, "start_time": 7000}

LOGINS: dict[str, tuple[bool, list[tuple[str, str]]]] = {
    "nobody": (False, [("sshd", "/usr/sbin/sshd -D")]),
    "a shell": (True, [("sshd", "sshd: ubuntu [priv]"), ("sshd", "sshd: ubuntu@pts/0"), ("bash", "-bash")]),
    "a command": (True, [("sshd", "sshd: ubuntu@notty"), ("rsync", "rsync --server")]),
    "OpenSSH 9.8": (True, [("sshd-session", "sshd-session: ubuntu@pts/1")]),
    "a scanner": (
        False,
        [("sshd", "sshd: unknown [priv]"), ("sshd", "sshd: [accepted]"), ("sshd", "sshd: root [net]")],
    ),
    "Session Manager": (True, [("ssm-session-wor", "/usr/bin/ssm-session-worker ada-0123")]),
    "tmux alone": (False, [("tmux: server", "tmux new -s work"), ("bash", "-bash")]),
}
ENDED = {"state": "done", "ended_at": NOW - 7200}
JOBS: dict[str, tuple[bool, list[Any]]] = {
    "none": (False, []),
    "runs": (True, [{"state": "running", "supervisor": SUPERVISOR}]),
    "hangs": (True, [{"state": "running", "supervisor": SUPERVISOR, "stall": {"text": "no progress", "since": 1.0}}]),
    "queued": (True, [ENDED, {"state": "queued", "supervisor": SUPERVISOR}]),
    "waits for a node": (False, [{"state": "waiting", "supervisor": SUPERVISOR}]),
    "without a supervisor yet": (True, [{"state": "starting", "supervisor": None}]),
    "ended long ago": (
        False,
        [ENDED, {"state": "failed", "ended_at": NOW - 9000}, {"state": "stopped", "ended_at": None}],
    ),
    "ended by a wrong clock": (
        False,
        [{"state": "done", "ended_at": NOW + 86400}],
    ),
    "its supervisor is dead": (False, [{"state": "running", "supervisor": {"pid": 701, "start_time": 7}}]),
    "its pid is another's now": (False, [{"state": "running", "supervisor": {"pid": 700, "start_time": 7}}]),
    "damaged": (True, ["{"]),
}
IDLE_KERNEL = [{"execution_state": "idle"}, {"execution_state": "dead"}]
REST: dict[str, tuple[bool, dict[str, Any]]] = {
    "nothing": (False, {}),
    "a loop": (True, {"cores": 1.0}),
    "services": (False, {"cores": 0.1}),
    "a kernel computes": (True, {"kernels": [*IDLE_KERNEL, {"execution_state": "busy"}]}),
    "kernels idle": (False, {"kernels": IDLE_KERNEL}),
    "a server is silent": (True, {"kernels": OSError("timed out")}),
    "a server says nonsense": (True, {"kernels": {"message": "Forbidden"}}),
    "a GPU computes": (True, {"gpus": "0\n97\n"}),
    "GPUs idle": (False, {"gpus": "0\n4\n"}),
    "nvidia-smi fails": (True, {"gpus": subprocess.TimeoutExpired("nvidia-smi", 20)}),
    "nvidia-smi says nonsense": (True, {"gpus": "[N/A]\n"}),
}


def write_process(root: Path, pid: int, name: str, command: str, *, started: int = 100, ticks: int = 0) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["0"] * 50
    fields[0], fields[11], fields[19] = "S", str(ticks), str(started)
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0" if command.startswith("/") else command + "\0")


def make_node(root: Path) -> Path:
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "passwd").write_text(
        "root:x:0:0::/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/bin/false\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n"
    )
    home = root / "home" / "ubuntu"
    home.mkdir(parents=True)
    write_process(root, 1, "systemd", "/sbin/init")
    write_process(root, 700, "python", "python -Es supervise", started=7000)
    return home


def look(root: Path, *, login: str, job: str, rest: str) -> Use:
    """Looks twice, ten seconds apart; returns the second result."""
    home, more = make_node(root), REST[rest][1]
    for number, (name, command) in enumerate(LOGINS[login][1]):
        write_process(root, 100 + number, name, command)
    for number, record in enumerate(JOBS[job][1]):
        folder = home / ".cluster" / "jobs" / f"job-{number}"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(record if isinstance(record, str) else json.dumps(record))
        for lock in ("lock", "submit.lock"):  # node/job_folder.py creates them like this
            (folder.parent / lock).touch()
    if "kernels" in more:
        runtime = home / ".local/share/jupyter/runtime"
        runtime.mkdir(parents=True)
        (runtime / "jpserver-800.json").write_text(json.dumps({"port": 8888, "base_url": "/", "token": "t"}))
        (runtime / "jpserver-801.json").write_text("of a server that has ended")
        write_process(root, 800, "jupyter-lab", "/usr/bin/python jupyter-lab")
    if "gpus" in more:
        (root / "dev").mkdir()
        (root / "dev" / "nvidia0").touch()

    def answer(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    node = Activity(
        str(root),
        run=lambda _: str(answer(more.get("gpus", FileNotFoundError("nvidia-smi")))),
        fetch=lambda _: answer(more["kernels"]),
    )
    write_process(root, 900, "python", "python work.py", ticks=500)
    node.look(NOW - 10, clock=1000.0)
    write_process(root, 900, "python", "python work.py", ticks=500 + int(more.get("cores", 0.0) * 10 * TICKS))
    return node.look(NOW, clock=1010.0)


CASES = list(product(LOGINS, JOBS, REST))


def test_enough_cases() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("rest", REST)
def test_a_node_in_use(tmp_path: Path, login: str, rest: str) -> None:
    """Tries each job with this login and the rest. The node is in use if one of the three is."""
    wrong = []
    for number, job in enumerate(JOBS):
        use = look(tmp_path / str(number), login=login, job=job, rest=rest)
        if (use.why is not None) is not (LOGINS[login][0] or JOBS[job][0] or REST[rest][0]):
            wrong.append((job, use))
    assert not wrong


def test_a_job_that_has_just_ended_was_use(tmp_path: Path) -> None:
    """This includes a job that began and ended between two looks."""
    home = make_node(tmp_path)
    (home / ".cluster" / "jobs" / "short").mkdir(parents=True)
    (home / ".cluster" / "jobs" / "short" / "record.json").write_text(
        json.dumps({"state": "done", "ended_at": NOW - 4})
    )
    node, idle = Activity(str(tmp_path)), IdleTime(longest_s=30)
    idle.note(Use(None), 0.0)
    for clock in range(10, 1000, 10):
        idle.note(Use(None), float(clock))
    assert idle.read(990.0)[0] == 990
    node.look(NOW - 10, 990.0)
    idle.note(node.look(NOW, 1000.0), 1000.0)
    assert idle.read(1000.0)[0] == 4


@pytest.mark.parametrize(("ended_at", "ago"), [(NOW - 5, 5.0), (NOW + 5, 0.0), (NOW + 86400, None), (1e999, None)])
def test_how_long_ago_a_job_ended(tmp_path: Path, ended_at: float, ago: float | None) -> None:
    home = make_node(tmp_path)
    (home / ".cluster" / "jobs" / "one").mkdir(parents=True)
    (home / ".cluster" / "jobs" / "one" / "record.json").write_text(json.dumps({"state": "done", "ended_at": ended_at}))
    assert Activity(str(tmp_path)).look(NOW, 0.0).used_s_ago == ago


def test_the_first_look_does_not_know_the_cpu(tmp_path: Path) -> None:
    make_node(tmp_path)
    assert Activity(str(tmp_path)).look(NOW, 1.0).why == "the CPU has not been measured yet"


def test_idle_time_is_not_counted_while_nobody_looks() -> None:
    """A node that was frozen for two hours does not count them as idle time."""
    idle = IdleTime(longest_s=30)
    for clock in (0.0, 15.0, 30.0, 7230.0):
        idle.note(Use(None), clock)
    assert idle.read(7230.0) == (60.0, None)
    assert idle.read(7400.0)[0] == 0.0  # a look that hangs
    idle.note(Use("ubuntu is logged in"), 7415.0)
    assert idle.read(7415.0) == (0.0, "ubuntu is logged in")


def test_this_machine() -> None:
    """The real /proc can be read."""
    node = Activity("/", fetch=lambda _: [])
    node.look(NOW, 0.0)
    node.look(NOW, 1.0)
