"""Programs of this project that are stopped (SIGSTOP) on a node end with their job, though they cannot answer."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_steps import ONE_WORKER, SILENCE_S, STARTS, Host, Tell, borrowed, check, hosts_of, nothing_left, running
from project import Project
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


def test_stopped_programs_whose_worker_was_killed(nodes: Project, record_property: Tell) -> None:
    """What that has left below them has nothing of the job's, not even its environment."""
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        guardian, program = job.wrapper("node-1")
        worker, *_ = (int(word) for word in Path(f"/proc/{program}/task/{program}/children").read_text().split())
        for pid in (guardian, program):
            os.kill(pid, signal.SIGSTOP)
        job.kill(worker)
        words = r"(worker|server) on node-1 \(process \d+\): nothing was heard from its node for 5 s"
        said = check("role.py stopped", job, (1, words), record_property, silence_s=SILENCE_S)
    assert "not known to have ended" not in said


def test_a_stopped_guardian_of_a_worker_that_ends_well(nodes: Project) -> None:
    """Its worker's end is told by the program below it."""
    head = hosts_of(nodes)["node-0"]
    go = head.root / "home/ubuntu/go"
    with nodes.running(
        "train", *ONE_WORKER, "--", "sh", "-c", "echo waits; until [ -e ~/go ]; do sleep 0.1; done"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker 0 node-0] waits\n", nodes.messages.read_text()
        guardian = until(lambda: guardian_on(head), "role.py does not run")
        os.kill(guardian, signal.SIGSTOP)
        go.touch()
        process.communicate(timeout=60)
    go.unlink()
    said = nodes.messages.read_text()
    assert process.returncode == 0, said
    (job,) = re.findall(r"^job (\S+): done", said, re.MULTILINE)
    nothing_left(job, hosts_of(nodes))


def guardian_on(host: Host) -> int:
    """The first process of role.py on a host, above the other."""
    return min(host.programs("role"))
