"""Many jobs in a row, in each of which something is killed at a random moment: nothing is left of any of them."""

import os
import random
from collections.abc import Callable

import pytest

from job_steps import hosts_of
from project import Project
from soak_steps import TARGETS, Nodes, Soak

pytestmark = pytest.mark.sandbox

SEED = int(os.environ.get("SOAK_SEED", "1"))  # what happens when is the same again only as far as processes are


@pytest.mark.parametrize(
    "jobs",
    [5, pytest.param(int(os.environ.get("SOAK_JOBS", "200")), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_jobs_with_random_kills(two_nodes: Project, jobs: int, record_property: Callable[[str, object], None]) -> None:
    hosts = hosts_of(two_nodes)
    nodes = Nodes(tuple(hosts[name] for name in sorted(hosts)))
    soak = Soak(f"soak-of-{jobs}", two_nodes, nodes, random.Random(SEED))
    soak.begin()
    targets: list[str] = []
    for number in range(jobs):
        targets = targets or soak.chance.sample(TARGETS, len(TARGETS))  # each as often as the others
        soak.run_job(number, targets.pop())
        assert len(soak.faults) < 5, "\n".join(soak.faults)
    soak.finish()
    record_property(
        "result",
        f"{jobs} jobs with kills {dict(soak.killed.most_common())}: ended {dict(soak.states.most_common())}, "
        f"at the latest {soak.longest_s:.1f} s after the last kill; nothing left",
    )
    assert soak.faults == [], "\n".join(soak.faults)
