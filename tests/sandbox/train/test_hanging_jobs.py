"""Jobs that hang silently: the user learns why, and [train] stall_timeout ends them."""

import time
from collections.abc import Iterator

import pytest

from job_steps import Tell, borrowed, check, python, running
from project import Project

pytestmark = pytest.mark.sandbox

STALL_S = 6.0
"""What stall.toml, a job file, sets as the time without progress after which a job is ended."""
MOST_S = 2 * STALL_S + 20.0
"""Two looks, a try of all ports, and a busy machine."""
UNEVEN = """
import mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((5, 5)))
out = mx.nd.zeros((5, 5))
print("waits for nobody as rank", kv.rank, flush=True)
for step in range(3 + 3 * kv.rank):
    kv.push("a", mx.nd.ones((5, 5)))
    kv.pull("a", out=out)
    out.wait_to_read()
"""


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    """The cluster for a test, with stall.toml."""
    with borrowed(two_nodes) as project:
        (project.directory / "stall.toml").write_text(f'stall_timeout = "{STALL_S:.0f}s"\n')
        yield project


def test_a_worker_with_fewer_batches_is_named(nodes: Project, record_property: Tell) -> None:
    """It has ended its script, and waits for the other at the end of the program."""
    with running(nodes, "--job", "stall.toml", "-s", "1", command=python(UNEVEN), waiting=2) as job:
        job.struck_at = time.monotonic()
        ended = r"worker 0 on node-\d is at the end of the program \(KVStore.__del__\)"
        waits = r"worker 1 on node-\d waits at <string>:10 \(NDArray.wait_to_read\)"
        words = rf"no worker made progress for 6 s \(stall_timeout\): {ended}; {waits}; the kv-store waits for what "
        words += r"worker 0 on node-\d pushes"
        check("different numbers of batches", job, (124, words), record_property, silence_s=MOST_S)
