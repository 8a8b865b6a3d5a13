"""The cost of a job's nodes while the job has them, in its record."""

from typing import Any

import pytest

from job_host import LocalHead, job_host
from node.job.cost import cost_of
from node.protocol import JobHost, OtherHost
from waits import until

__all__ = ["job_host"]

OWN = OtherHost(user="ada", port=22, python="python3", code_dir="/c", cwd="/c", command=("true",))


@pytest.mark.parametrize(
    ("hosts", "usd"),
    [
        ([JobHost(name="node-0", usd_per_hour=1.5)], 3.0),
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-1", usd_per_hour=0.5)], 4.0),
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-0", usd_per_hour=1.5)], 3.0),  # a single node
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="node-1")], None),  # an unknown price
        ([JobHost(name="node-0", usd_per_hour=1.5), JobHost(name="ada@lab", place=OWN)], 3.0),
        ([JobHost(name="node-0", usd_per_hour=0.0)], 0.0),
    ],
)
def test_the_cost_of_hosts(hosts: list[JobHost], usd: float | None) -> None:
    assert cost_of(hosts, 2 * 3600) == usd
    assert cost_of(hosts, -1) in {None, 0.0}


def priced(order: dict[str, Any], *prices: float | None) -> dict[str, Any]:
    hosts = [{**host, "usd_per_hour": price} for host, price in zip(order["hosts"], prices, strict=True)]
    return {**order, "hosts": hosts}


def test_a_job_costs_its_nodes_while_it_has_them(job_host: LocalHead) -> None:
    order = priced(job_host.order(env={"WORKER": "echo here; sleep 2"}), 3600.0, 7200.0)  # 3 dollars a second
    assert job_host.ask("submit", order=order)[0]["state"] == "starting"
    job_host.wait_for('"line": "here"', count=2)
    until(lambda: job_host.record()["cost_usd"], "a cost while it runs")
    assert job_host.result()["state"] == "done"
    record = job_host.record()
    held_s = record["ended_at"] - record["held_at"]
    assert record["submitted_at"] <= record["held_at"] <= record["started_at"]
    assert held_s >= 2
    assert record["cost_usd"] == pytest.approx(3 * held_s, rel=0.01)
