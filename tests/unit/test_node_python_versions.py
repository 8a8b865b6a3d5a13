"""The programs of the nodes run on Python 3.6 to 3.13, with its standard library alone."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from job_host import JobHost, job_host, job_id, lines_of
from pythons import NODE_FOLDERS, VERSIONS, find_python

__all__ = ["job_host"]

PROGRAMS = sorted(path for folder in NODE_FOLDERS for path in folder.glob("*.py"))
OLDEST = (3, 6)
OTHERS = [version for version in VERSIONS if version != ".".join(map(str, sys.version_info[:2]))]
OFTEN = ("3.6", "3.8", "3.13")  # jobs run on the others in `make test-all`
# Not from the standard library: what programs that MXNet's own Python runs may import (networks: of train/scripts).
OF_MXNET = {"mxnet", "dmlc_tracker", "numpy", "networks"}
# All that an interpreter can say of a file without running it, and then what importing it says.
LOAD = """
import importlib, os, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
names = sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".py"))
for name in names:
    with open(os.path.join(folder, name + ".py"), "rb") as stream:
        compile(stream.read(), name, "exec")
for name in names:
    if name not in sys.argv[2:]:
        importlib.import_module(name)
print(len(names))
"""
# They import MXNet's at the top, or are sent over stdin and run as they are read.
NOT_FOR_IMPORT = ("verify_compute", "verify_s3", "bench_kvstore")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_grammar_is_that_of_the_oldest_python(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=OLDEST)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_nothing_but_the_standard_library_is_imported(path: Path) -> None:
    known = {*sys.stdlib_module_names, *(one.stem for one in PROGRAMS), *OF_MXNET}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "it is run by path, and so is in no package"
            imported.add(str(node.module).partition(".")[0])
    assert imported <= known


def test_nothing_is_newer_than_the_oldest_python() -> None:
    """Not in its grammar, nor a module, function or argument of its standard library."""
    words = ["--target=3.6-", "--violations", "--no-tips", "--quiet"]
    # launch.py assigns it, for later Pythons to find: an older one does not look.
    words += ["--exclude", "threading.excepthook"]
    done = subprocess.run(
        [Path(sys.executable).parent / "vermin", *words, *map(str, PROGRAMS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(kw_only=True)
class OtherHost(JobHost):
    """A head and nodes whose Python is another one."""

    interpreter: str

    def ask(self, *words: str, order: dict[str, Any] | None = None, code: int = 0) -> list[dict[str, Any]]:
        done = subprocess.run(
            [self.interpreter, "-ES", str(NODE_FOLDERS[0] / "jobs.py"), *words],
            env=self.env(),
            input="" if order is None else json.dumps(order) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, "")
        return [message for line in done.stdout.splitlines() if "alive" not in (message := json.loads(line))]

    def env(self) -> dict[str, str]:
        return {**super().env(), "PYTHONDONTWRITEBYTECODE": "1"}


def need_python(version: str) -> str:
    found = find_python(version)
    if found is None:
        pytest.skip(f"there is no Python {version} here")
    return found


@pytest.fixture(params=[pytest.param(one, marks=[] if one in OFTEN else [pytest.mark.slow]) for one in OTHERS])
def other_host(job_host: JobHost, request: pytest.FixtureRequest) -> OtherHost:
    interpreter = need_python(request.param)
    wrapper = Path(job_host.python)
    wrapper.write_text(wrapper.read_text().replace(sys.executable, interpreter))
    assert interpreter in wrapper.read_text()
    return OtherHost(home=job_host.home, python=job_host.python, interpreter=interpreter)


@pytest.mark.parametrize("version", OTHERS)
def test_all_programs_load(version: str) -> None:
    interpreter = need_python(version)
    for folder in NODE_FOLDERS:
        done = subprocess.run(
            [interpreter, "-ESB", "-W", "error", "-c", LOAD, str(folder), *NOT_FOR_IMPORT],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert int(done.stdout) == len(list(folder.glob("*.py")))


def test_jobs_run_fail_and_are_stopped(other_host: OtherHost) -> None:
    """Every program of a job is run by that Python: jobs.py, supervise.py, launch.py, ssh_proxy.py and role.py."""
    assert other_host.ask("list") == [{"jobs": []}]
    order = other_host.order(
        env={"WORKER": "echo here; sleep 0.5; [ $DMLC_NODE_HOST = 127.0.0.1 ] || exit 7; sleep 100"}
    )
    result, log = other_host.run(order)
    assert (result["state"], result["exit_code"], result["left"]) == ("failed", 7, {}), (result, log)
    assert "on node-1" in result["error"]
    assert "here" in lines_of(log, "worker")
    waiting = other_host.order("/bin/sh", "-c", "echo here; sleep 100", job=job_id(2), workers=1, servers=0)
    assert other_host.ask("submit", order=waiting) == [{"job": job_id(2), "state": "starting"}]
    other_host.wait_for('"line": "here"', job_id(2))
    queued = {**waiting, "job": job_id(3), "command": ["/bin/true"], "queue": True}
    assert other_host.ask("submit", order=queued)[0]["state"] == "queued"
    assert other_host.ask("stop", job_id(2))[0]["result"]["state"] == "stopped"
    assert other_host.ask("follow", job_id(3), "0")[-1]["result"]["state"] == "done"
    assert other_host.processes(job_id(2)) == other_host.processes(job_id(3)) == []
    assert [job["state"] for job in other_host.ask("list")[0]["jobs"]] == ["done", "stopped", "failed"]


def test_what_a_killed_supervisor_leaves_is_ended(other_host: OtherHost) -> None:
    other_host.ask("submit", order=other_host.order(env={"WORKER": "echo here; sleep 100"}))
    other_host.wait_for('"line": "here"', count=2)
    other_host.kill_supervisor()
    (listed,) = other_host.ask("list")[0]["jobs"]
    assert (listed["state"], listed["error"]) == ("failed", "the supervisor on node-0 was killed")
    assert other_host.processes() == []
