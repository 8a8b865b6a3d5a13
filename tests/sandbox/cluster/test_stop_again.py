"""`cluster stop` for a job that has ended and left something behind, on a node that could not be searched then."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from job_steps import SILENCE_S, STARTS, borrowed, running
from project import Project, processes_of
from waits import until

pytestmark = pytest.mark.sandbox

LEFT = "sleep 598"


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


def test_processes_on_a_disconnected_node(nodes: Project) -> None:
    """They are ended when the node is back."""
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        ends = [f"{name}={job.hosts[node].instance_id}" for name, node in (("a", "node-0"), ("b", "node-1"))]
        job.fault("partition", *ends)
        try:
            code, said = job.ends(silence_s=SILENCE_S, besides=("node-1",))
            assert code == 1
            assert "may still run: node-1 could not be searched" in said
            job.is_gone(timeout_s=2 * SILENCE_S + 10.0)  # node-1 ends the processes that it knows itself
            left = f"CLUSTER_JOB_ID={job.id} setsid {LEFT} >/dev/null 2>&1 </dev/null &"
            nodes.run("exec", "--node", "node-1", "--", "sh", "-c", left)
            until(lambda: processes_of("CLUSTER_JOB_ID", job.id), "nothing is left to be ended")
            failed = nodes.run("stop", job.id, code=1)
            assert f"job {job.id} had already ended, but processes of it may still run: node-1" in failed.stderr
            assert list(kept(nodes)["left"]) == ["node-1"]
        finally:
            job.fault("heal", *ends)
        assert processes_of("CLUSTER_JOB_ID", job.id)
        done = nodes.run("stop")
        assert f"job {job.id}" in done.stderr
        first, second, third = done.stdout.splitlines()
        assert first == "no job runs"
        assert second.startswith(f"job {job.id} ")
        assert second.endswith(" had already ended: failed")
        assert third == "no process of the job is left on node-0, node-1"
        job.is_gone()
    assert (kept(nodes)["id"], kept(nodes)["left"]) == (job.id, {})
    assert nodes.run("stop").stdout == "no job runs\n"


def kept(nodes: Project) -> dict[str, Any]:
    """Returns what `cluster jobs --json` prints about the newest job."""
    newest: dict[str, Any] = json.loads(nodes.run("jobs", "--json").stdout)[0]
    return newest
