"""Asks the agents of an attempt for the stacks of its processes, for `cluster stacks`."""

import asyncio

from node.job.stacks import Location, Stack
from node.supervisor.agents import wait_for
from node.supervisor.processes import JobProcess, Processes
from node.wire import Placed, Stacks, TakeStack, TakeStacks

ANSWERS_S = 10.0  # more than py-spy needs on a busy node; less than the client waits
UNANSWERED = f"its node did not answer within {ANSWERS_S:.0f} s"


class StackRequests:
    """The requests that wait for agents' answers."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._asked: dict[int, asyncio.Future[Placed]] = {}  # by the process's number
        self._taking = asyncio.Lock()  # an answer does not say to which request

    def on_message(self, message: Placed) -> None:
        """Handles an agent's answer."""
        future = self._asked.get(message.p)
        if future is not None and not future.done():
            future.set_result(message)

    async def take(self, wanted: TakeStacks) -> Stacks:
        """Returns where the running processes are: all of them, or the worker of one rank. One request at a time."""
        async with self._taking:
            return await self._take(wanted)

    async def _take(self, wanted: TakeStacks) -> Stacks:
        chosen = [one for one in self._processes.of_job() if one.pid is not None and one.exit_code is None]
        chosen.sort(key=lambda one: (one.role != "worker", one.role, one.rank if one.rank is not None else one.number))
        if wanted.rank is not None:
            chosen = [one for one in chosen if one.role == "worker" and one.rank == wanted.rank]
        if not chosen:
            return Stacks(error="none of its processes runs" if wanted.rank is None else f"no rank {wanted.rank} runs")
        for process in chosen:
            self._asked[process.number] = asyncio.get_running_loop().create_future()
            is_first = process is chosen[0]  # NCCL's answer is about the whole job
            whole, native = wanted.rank is not None, wanted.native
            order = TakeStack(process.number, asked=True, whole=whole, native=native, nccl=is_first, recorder=True)
            process.agent.put(order)
        futures = {process.number: self._asked[process.number] for process in chosen}
        await wait_for(list(futures.values()), ANSWERS_S)
        return Stacks(stacks=tuple(_describe(process, futures[process.number]) for process in chosen))


def _describe(process: JobProcess, future: "asyncio.Future[Placed]") -> Stack:
    location = future.result().location if future.done() else Location(why=UNANSWERED)
    return Stack(role=process.role, host=process.host, rank=process.rank, location=location)
