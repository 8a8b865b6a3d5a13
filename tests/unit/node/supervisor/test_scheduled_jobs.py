"""Jobs whose nodes a batch scheduler assigns, from the order to the record. Slurm's programs are fakes with files."""

from typing import Any

import pytest

from fake_slurm import NODES, FakeSlurm, make_slurm
from job_host import ROLE, LocalHead, job_host, job_id, lines_of, log_has
from waits import until

__all__ = ["job_host"]

JOB = job_id(1)
RUNNING = log_has('"state": "running"')


@pytest.fixture
def slurm(job_host: LocalHead, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A fake Slurm that assigns 127.0.0.2 and 127.0.0.3."""
    made = make_slurm(job_host.home)
    made.touch("nodes", NODES.replace("10.0.0.4", "127.0.0.2").replace("10.0.0.5", "127.0.0.3"))
    monkeypatch.setenv("PATH", f"{made.programs}:/usr/local/bin:/usr/bin:/bin")
    return made


def order(host: LocalHead, *command: str, job: str = JOB, **more: Any) -> dict[str, Any]:
    """An order for a worker on each of two nodes, planned for node-0 and node-1. node-2 is set up, too."""
    hosts = [{"name": f"node-{i}", "ip": f"127.0.0.{i + 1}", "instance_id": f"i-{i}"} for i in range(3)]
    request = {"job": job, "name": "name", "nodes": 2, "queue": "cluster"}
    fields: dict[str, Any] = {"launcher": "env", "kv_store": "none", "workers": 2, "servers": 0, "hosts": hosts}
    fields |= {"lines": ["node-0", "node-1"], "scheduler": "slurm", "request": request}
    return host.order(*(command or ("true",)), job=job, **fields, **more)


def test_after_a_killed_supervisor_the_nodes_are_given_back(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """Slurm's reason may name all of its nodes: a record with a longer text than Name could not be read."""
    slurm.set_job("PENDING", f"ReqNodeNotAvail,_UnavailableNodes:{','.join(f'cn{number:03}' for number in range(99))}")
    job_host.ask("submit", order=order(job_host))
    job_host.wait_for("is pending")
    job_host.kill_supervisor()
    (answer,) = job_host.ask("list")
    assert answer["jobs"][0]["error"] == "the supervisor on node-0 was killed"
    until(lambda: slurm.read("cancelled") == "12\n")


def test_launch_py_runs_on_nodes_that_were_not_planned(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """The plan names the first ones, and the head has no worker then."""
    slurm.set_job("RUNNING")
    made = order(job_host, "/bin/bash", "-c", ROLE, env={"WORKER": f"echo $CLUSTER_HOST; {RUNNING}"})
    result, log = job_host.run({**made, "launcher": "ssh", "kv_store": "dist_sync", "servers": 1})
    assert (result["state"], sorted(lines_of(log, "worker"))) == ("done", ["node-1", "node-2"])


def test_the_scheduler_decides_which_of_its_jobs_run_at_once(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """Other jobs run one at a time, also with these, and so do jobs in the same folder (sync_dst_dir)."""
    slurm.set_job("RUNNING")
    for number in (1, 2):
        made = order(job_host, "sleep", "100", job=job_id(number), cwd=str(job_host.home / job_id(number)))
        assert job_host.ask("submit", order=made) == [{"job": job_id(number), "state": "starting"}]
        job_host.wait_for('"state": "running"', job=job_id(number))
    same = order(job_host, job=job_id(3), cwd=str(job_host.home / job_id(2)))
    assert job_host.ask("submit", order=same)[0]["refused"]["spec"]["id"] == job_id(2)
    direct = job_host.order("true", job=job_id(3))
    assert job_host.ask("submit", order=direct)[0]["refused"]["spec"]["id"] == job_id(1)
    assert job_host.ask("submit", order={**direct, "queue": True})[0]["state"] == "queued"
    assert job_host.ask("submit", order=order(job_host, job=job_id(4)))[0]["refused"]["spec"]["id"] == job_id(3)
    for number in (3, 2, 1):
        job_host.ask("stop", job_id(number))


def test_a_job_that_hangs_starts_again_on_its_nodes(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """They are given back once, at the end of the job: before, another job could get them."""
    slurm.set_job("RUNNING")
    script = f'[ "$CLUSTER_ATTEMPT" = 2 ] || sleep 100; cat {slurm.state}/cancelled 2>&1'
    result, log = job_host.run(order(job_host, "/bin/sh", "-c", script, stall_timeout=3, on_stall="requeue"))
    assert job_host.record()["attempts"][0]["reason"] == "stalled"
    assert {line.rpartition(": ")[2] for line in lines_of(log, "worker")} == {"No such file or directory"}
    assert slurm.read("cancelled") == "12\n"
    assert result["exit_code"] == 1  # of cat


def test_a_job_that_is_done_does_not_fail_while_it_gives_its_nodes_back(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """The watch then sees that the allocation was cancelled."""
    slurm.set_job("RUNNING")
    slurm.touch("cancel-slow")
    result, _ = job_host.run(order(job_host))
    assert (result["exit_code"], job_host.record()["state"]) == (0, "done")


def test_at_the_walltime_of_its_allocation_no_job_starts_again(job_host: LocalHead, slurm: FakeSlurm) -> None:
    """Slurm may end the processes first, which then fail; here, one of them does not end at once."""
    slurm.set_job("RUNNING")
    script = f"""
        [ "$CLUSTER_ATTEMPT" = 1 ] || exit 7
        [ "$CLUSTER_RANK" = 0 ] || {{ trap "" TERM; sleep 100; }}
        rm -f {slurm.state}/asked; until [ -f {slurm.state}/asked ]; do sleep 0.1; done; sleep 1.5
        echo TIMEOUT >{slurm.state}/job; exit 1"""
    made = order(job_host, "/bin/sh", "-c", script, restarts_on_error=1)
    within = {"scheduler": "slurm", "number": "12", "hosts": []}
    result, _ = job_host.run({**made, "scheduler": None, "request": None, "within": within})
    assert (result["exit_code"], len(job_host.record()["attempts"])) == (124, 1)
