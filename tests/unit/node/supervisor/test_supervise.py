"""The supervisor on this machine: how jobs start and end, and its messages to the user."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from job_host import LocalHead, job_host, job_id, lines_of, log_has
from waits import until

__all__ = ["job_host"]


HERE = {"WORKER": "echo here; sleep 100"}
ALONE: dict[str, Any] = {"workers": 1, "servers": 0}  # runs without launch.py, with the fewest processes
RUNNING = log_has('"state": "running"')  # a worker that succeeds earlier would end a job that has not started


def test_a_good_job_and_its_log(job_host: LocalHead) -> None:
    env = {"WORKER": f"echo $CLUSTER_HOST; echo $0 >&2; {RUNNING}"}
    result, log = job_host.run(job_host.order(env=env))
    assert result == {"state": "done", "exit_code": 0, "error": None, "cause": None, "culprit": None, "left": {}}
    assert [event["state"] for event in log if "state" in event] == ["starting", "running", "ending", "done"]
    assert sorted(lines_of(log, "worker")) == ["/bin/bash", "/bin/bash", "node-0", "node-1"]
    roles = [event["role"] for event in log if "role" in event]
    assert sorted(roles) == ["launcher", "scheduler", "server", "worker", "worker"]
    assert [event["t"] for event in log] == sorted(event["t"] for event in log)
    record = job_host.record()
    assert (record["state"], record["exit_code"], record["error"]) == ("done", 0, None)
    assert record["submitted_at"] <= record["started_at"] <= record["ended_at"]
    assert {role["exit_code"] for role in record["roles"] if role["role"] != "launcher"} == {0}
    assert (job_host.folder() / "output").is_dir()
    assert not (job_host.folder() / "socket").exists()


BAR = """
import os, sys, time
for step in range(1000):
    sys.stdout.write(f"\\router: 0/1\\n\\rinner: {step}/1000\\x1b[A")
    sys.stdout.flush()
    time.sleep(0.02)
    if step > 50 and os.path.exists(sys.argv[1]):
        break
sys.stdout.write("\\router: 1/1\\n")
sys.stdout.flush()
sys.stdout.buffer.write(b"caf\\xe9\\n")
print(input("Continue? "))
"""


def test_a_bar_is_seen_while_it_moves_and_stored_when_it_ends(job_host: LocalHead, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    order = job_host.order(sys.executable, "-c", BAR, str(enough), **ALONE)
    followed: list[dict[str, Any]] = []
    with job_host.asking("submit", "--follow", order=order) as client:
        for line in client.stdout:
            followed.append(json.loads(line))
            if sum("inner" in event.get("bar", "") for event in followed) == 3 and not enough.exists():
                job_host.wait_for('"running"')
                with job_host.asking("follow", job_id(1), "0") as other:  # one that comes later sees it at once
                    assert any('"bar"' in text for text in other.stdout)
                assert "inner" not in job_host.events()
                enough.touch()
    bars = [event["bar"] for event in followed if "bar" in event]
    steps = [int(bar.partition("inner: ")[2].partition("/")[0]) for bar in bars if "inner" in bar]
    assert steps == sorted(set(steps))
    assert bars[0].startswith("outer: 0/1\ninner: ")
    stored = [json.loads(line) for line in job_host.events().splitlines()]
    assert not [event for event in stored if "bar" in event]
    lines = lines_of(stored)
    assert lines[:2] == ["outer: 1/1", "caf\udce9"]
    assert lines[2].startswith("Continue? ")  # and Python's traceback: there is no input, and nothing waits for it
    assert lines[-1] == "EOFError: EOF when reading a line"
    assert job_host.result()["exit_code"] == 1


def test_after_a_killed_supervisor_no_process_is_left_on_the_head(job_host: LocalHead) -> None:
    """Although nobody asks. All get SIGTERM first, daemons too; the first of two questions completes the record."""
    worker = "trap 'touch ~/told; exit' TERM; setsid sh -c \"trap '' TERM; echo here; exec sleep 600\" & wait"
    order = job_host.order(env={"WORKER": worker}, **ALONE)
    job_host.ask("submit", order={**order, "hosts": order["hosts"][:1], "lines": order["lines"][:1]})
    job_host.wait_for('"line": "here"')
    job_host.kill_supervisor()
    until(lambda: not job_host.processes(), timeout_s=20)
    assert (job_host.home / "told").exists()
    with job_host.asking("list") as first, job_host.asking("list") as second:
        lists = [json.loads(process.stdout.read())["jobs"] for process in (first, second)]
    assert [[job["error"] for job in jobs] for jobs in lists] == [["the supervisor on node-0 was killed"]] * 2
    assert job_host.events().count('"result"') == 1
    assert job_host.result()["exit_code"] == 1


def test_a_launcher_that_fails_is_named_with_its_output(job_host: LocalHead, tmp_path: Path) -> None:
    launcher = tmp_path / "packages" / "mxnet" / "tools" / "launch.py"
    launcher.write_text("raise SystemExit('it cannot go on')")
    result, log = job_host.run(job_host.order())
    assert result["error"].startswith("launch.py on node-0 (process ")
    assert result["error"].endswith("ended with exit code 1")
    assert lines_of(log, "launcher") == ["it cannot go on"]


def test_a_set_up_command_that_fails_ends_the_job_before_it_starts(job_host: LocalHead) -> None:
    order = job_host.order(job_setup=["true", "test $CLUSTER_HOST = node-0 || exit 6; sleep 100"])
    result, log = job_host.run(order)
    assert result["exit_code"] == 6
    wanted = "the set-up command `test $CLUSTER_HOST = node-0 || exit 6; sleep 100` on node-1 ended with exit code 6"
    assert result["error"] == wanted
    assert {event["role"] for event in log if "role" in event} == {"setup"}


def test_roles_have_their_own_environment_and_gpus(job_host: LocalHead) -> None:
    """With the local launcher, all of them are on the head."""
    env = dict.fromkeys(("SERVER", "SCHEDULER"), "echo $A$SECRET; attend")
    env["WORKER"] = f"echo $A $B $SECRET $CUDA_VISIBLE_DEVICES; {RUNNING}"
    more: dict[str, Any] = {"env_server": {"A": "server"}, "env_worker": {"A": "worker", "B": "b"}}
    order = job_host.order(launcher="local", env={"A": "all", **env}, **more)
    result, log = job_host.run({**order, "gpus_per_worker": [[0, 1], [2, 3]], "secrets": {"SECRET": "hush"}})
    assert result["state"] == "done"
    assert sorted(lines_of(log, "worker")) == ["worker b hush 0,1", "worker b hush 2,3"]
    assert lines_of(log, "server") == ["serverhush"]
    assert lines_of(log, "scheduler") == ["all"]
    assert {event["host"] for event in log if "host" in event} == {"node-0"}


def test_a_full_disk_ends_the_job_with_an_error(job_host: LocalHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file-size limit replaces the full disk: writes fail in the same way, with another error number."""
    program = "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    program += "resource.setrlimit(resource.RLIMIT_FSIZE, (600000, 600000)); sys.argv = sys.argv[1:]; "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    wrapper = Path(job_host.python)
    text = wrapper.read_text().replace('"$@"', "")
    limited = f'case "$3" in supervise) {text.splitlines()[1]} -Es -c "{program}" "$2" "$3";; esac\n'
    wrapper.write_text(text.splitlines()[0] + "\n" + limited + text.splitlines()[1] + ' "$@"\n')
    monkeypatch.setattr(sys, "executable", job_host.python)  # it runs the node programs
    order = job_host.order(env={"WORKER": "yes"}, **ALONE)
    result, _ = job_host.run(order)
    assert (result["state"], result["exit_code"]) == ("failed", 1)
    assert result["error"] == f"node-0: File too large ({job_host.folder()}/events)"
    assert job_host.record()["state"] == "failed"
    assert all(json.loads(line) for line in job_host.events().splitlines())


def test_a_program_that_dies_silently_ends_the_job(job_host: LocalHead) -> None:
    """launch.py continues without reporting it."""
    path = Path(job_host.python).parents[1] / "packages" / "mxnet" / "tools" / "launch.py"
    line = 'prog = "ssh '
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, 'prog = ("" if i else "kill -9 $$; ") + "ssh '))
    result, _ = job_host.run(job_host.order(env=HERE))
    error = result["error"].replace("scheduler on node-0, ", "")  # on a slow machine, it has not started either
    assert error == "the job cannot start: launch.py failed to start server on node-0"
