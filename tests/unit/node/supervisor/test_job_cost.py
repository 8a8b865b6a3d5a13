"""The cost of a job's nodes while the job has them, in its record."""

import pytest

from job_host import job_host
from node.job.cost import cost_of
from node.protocol import HostSettings, JobHost

__all__ = ["job_host"]

OWN = HostSettings(user="ada", port=22, python="python3", code_dir="/c", cwd="/c", command=("true",))


@pytest.mark.parametrize(
    ("hosts", "usd"),
    [
        ([JobHost(name="node-0", usd_per_hour=1.5)], 3.0),
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-1", usd_per_hour=0.5)], 4.0),
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-0", usd_per_hour=1.5)], 3.0),  # a single node
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-1")], None),  # an unknown price
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="ada@lab", own_host=OWN)], 3.0),
        ([JobHost(name="node-0", usd_per_hour=0.0)], 0.0),
    ],
)
def test_the_cost_of_hosts(hosts: list[JobHost], usd: float | None) -> None:
    assert cost_of(hosts, 2 * 3600) == usd
    assert cost_of(hosts, -1) in {None, 0.0}
