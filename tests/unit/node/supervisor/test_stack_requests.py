"""Requests for the stacks of a job's processes, which several users may make at the same time."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from job_channels import make_agents, make_order
from node.job.stacks import Location
from node.supervisor.agents import HostAgent
from node.supervisor.attempts import stacks
from node.supervisor.processes import Processes
from node.wire import Placed, TakeStack, TakeStacks


def test_two_requests_at_the_same_time_get_their_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "ANSWERS_S", 0.5)
    order = make_order()
    agents = make_agents(order)
    processes = Processes(order, agents)
    process = processes.add("worker", "node-0")
    process.pid = 7
    stalls = cast("Any", SimpleNamespace(complete=lambda _process, location: location))

    async def ask_twice(child: "subprocess.Popen[bytes]") -> list[Any]:
        agent = process.agent = HostAgent(order.hosts[0], child, is_here=True)

        def put(message: TakeStack) -> None:
            answer = Placed(message.p, Location(text=f"native {message.native}"), message.asked)
            for _ in range(2):  # the second one is a mistake of the node
                asyncio.get_running_loop().call_later(0.05 if message.native else 0.02, agent.note, answer)

        monkeypatch.setattr(agent, "put", put)
        requests = (TakeStacks(native=True), TakeStacks())
        return await asyncio.gather(*(stacks.take_stacks(processes, stalls, one) for one in requests))

    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        answers = asyncio.run(ask_twice(child))
    assert [one.stacks[0].location.text for one in answers] == ["native True", "native False"]
