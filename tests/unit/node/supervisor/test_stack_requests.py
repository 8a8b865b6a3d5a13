"""Requests for the stacks of a job's processes, which several users may make at the same time."""

import asyncio

import pytest

from job_channels import make_agents, make_order
from node.job.stacks import Location
from node.supervisor.attempts import stacks
from node.supervisor.processes import Processes
from node.wire import Placed, Stacks, TakeStack, TakeStacks


def test_two_requests_at_the_same_time_are_both_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "ANSWERS_S", 0.5)
    order = make_order()
    agents = make_agents(order)
    processes = Processes(order, agents)
    processes.add("worker", "node-0").pid = 7

    async def ask_twice() -> tuple[Stacks, Stacks]:
        requests = stacks.StackRequests(processes)

        def put(message: TakeStack) -> None:
            answer = Placed(message.p, Location(text="train.py:7"), asked=True)
            asyncio.get_running_loop().call_later(0.02, requests.on_message, answer)

        agents["node-0"].put = put
        return await asyncio.gather(requests.take(TakeStacks()), requests.take(TakeStacks(native=True)))

    assert [answer.stacks[0].location.text for answer in asyncio.run(ask_twice())] == ["train.py:7"] * 2
