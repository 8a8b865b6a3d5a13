"""Each kind of use on real hosts, and the end by the budget; test_regions.py has the end of an idle cluster."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from job_steps import Host, hosts_of, records
from project import Project
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

IDLE_S = 100
"""The programs look every 5 s."""
LOOK_S = 30.0  # on a busy machine, looks are late
LOOP = "setsid sh -c 'while :; do :; done' looping </dev/null >/dev/null 2>&1 &"


def ask(host: Host) -> dict[str, Any]:
    """The state of a host's lease program, without a login."""
    time.sleep(0.5)  # the answers take CPU time, too
    since, why = ((host.root / "run/cluster" / name).read_text().strip() for name in ("since", "why"))
    others = [int(path.read_text()) for path in (host.root / "run/cluster/others").iterdir()]
    return {"idle_s": time.time() - max([int(since), *others]), "why": why}


def test_each_kind_of_use(project: Project) -> None:
    project.run("up")
    project.run("lease", "--idle", f"{IDLE_S}s", "--yes")
    head, worker = hosts_of(project)["node-0"], hosts_of(project)["node-1"]

    def on(name: str, command: str) -> None:
        project.run("exec", "--node", name, "--", "bash", "-c", command)

    @contextmanager
    def login(name: str) -> Iterator[None]:
        """Logs in to a node until the block ends. The last look may be one at an earlier command's login."""
        with project.running("exec", "--node", name, "--", "sh", "-c", "echo here; exec sleep 1000") as process:
            assert process.stdout is not None
            assert "here" in process.stdout.readline()
            yield

    def is_in_use(why: str) -> Callable[[], bool]:
        return lambda: ask(head)["idle_s"] < 15 and why in str(ask(head)["why"])

    def is_idle(at_least_s: float = 12.0) -> bool:
        """Whether both nodes are idle, as the head reports."""
        return float(ask(head)["idle_s"]) >= at_least_s

    def look() -> list[float]:
        """The idle times that the head sees in LOOK_S seconds."""
        seen, ends_at = [], time.time() + LOOK_S
        while time.time() < ends_at:
            seen.append(float(ask(head)["idle_s"]))
            time.sleep(1)
        return seen

    # A login on the head, and one on the worker alone.
    with login("node-0"):
        until(is_in_use("is logged in"), "the login")
        assert max(look()) < LOOK_S
    until(is_idle, "the end of the login")
    with login("node-1"):
        until(lambda: ask(head)["idle_s"] < 15, "the login on the worker")
        assert max(look()) < LOOK_S
    until(is_idle, "the end of the login on the worker")

    # A running job, a queued one, and one that hangs.
    for queue in ((), ("--queue",)):
        project.run("train", "--detach", *queue, "--kv-store", "local", "-n", "1", "--", "sleep", "1000")
    first, second = sorted(records(project), key=lambda job: str(job["id"]))
    assert [first["state"], second["state"]] == ["running", "queued"]
    until(is_in_use(f"job {first['id']} has not ended"), "the running job")
    assert max(look()) < LOOK_S
    on("node-0", "pkill -STOP -x sleep")
    until(is_in_use(f"job {first['id']} has not ended"), "the job that hangs")
    assert max(look()) < LOOK_S
    on("node-0", "pkill -CONT -x sleep")
    project.run("stop", first["id"])
    until(is_in_use(f"job {second['id']} has not ended"), "the second job")

    # A job that has just ended.
    project.run("stop", second["id"])
    ended_at = max(job["ended_at"] for job in records(project))
    until(lambda: not re.search("job|logged in", str(ask(head)["why"])), "the end of the jobs")
    assert ask(head)["idle_s"] <= time.time() - ended_at + 1
    until(is_idle, "the end of the last job")

    # A loop without a login.
    on("node-1", LOOP)
    until(lambda: "the CPU is busy" in str(ask(worker)["why"]), "the loop")
    until(lambda: ask(head)["idle_s"] < 15, "the loop, on the head")
    assert max(look()) < LOOK_S
    on("node-1", "pkill -f '[l]ooping'")
    until(is_idle, "the end of the loop")

    # No use any more: the cluster ends, and not too early.
    began = time.time() - float(ask(head)["idle_s"])
    until(lambda: not hosts_of(project), "the end of the cluster", timeout_s=IDLE_S + 90)
    assert time.time() - began >= IDLE_S
    assert json.loads(project.run("status", "--json").stdout)["lease_ended"] == "its lease ended it (idle = 100s)"


def test_the_budget_ends_a_cluster(project: Project) -> None:
    """The budget counts from the launch on, although the launch had no budget."""
    project.run("up")
    cost = json.loads(project.run("cost", "--json").stdout)
    budget = round(cost["usd"] + 40 * cost["usd_per_hour"] / 3600, 6)
    shown = project.run("lease", "--budget", str(budget), "--yes").stdout
    assert f"at ${budget:g}" in shown
    began = time.time()
    until(lambda: not hosts_of(project), "the end of the cluster", timeout_s=120)
    assert time.time() - began > 20
    ended = json.loads(project.run("status", "--json").stdout)["lease_ended"]
    assert ended.startswith("its lease ended it (")
    assert f"budget_usd = {budget:g}" in ended
