"""Asks the agents of an attempt for the stacks of its processes, for `cluster stacks`."""

from node.job.stacks import Location, Stack
from node.supervisor.agents import wait_for
from node.supervisor.processes import Processes
from node.supervisor.stalls import Stalls
from node.wire import Refusal, Stacks, TakeStack, TakeStacks

ANSWERS_S = 10.0  # more than py-spy needs on a busy node; less than the client waits
UNANSWERED = Location(why=f"its node did not answer within {ANSWERS_S:.0f} s")


async def take_stacks(processes: Processes, stalls: Stalls, wanted: TakeStacks) -> Stacks | Refusal:
    """Returns where the running processes are: all of them, or the worker of one rank."""
    chosen = [one for one in processes.of_job() if one.pid is not None and one.exit_code is None]
    chosen.sort(key=lambda one: (one.role != "worker", one.role, one.rank if one.rank is not None else one.number))
    if wanted.rank is not None:
        chosen = [one for one in chosen if one.role == "worker" and one.rank == wanted.rank]
    if not chosen:
        return Refusal("none of its processes runs" if wanted.rank is None else f"no rank {wanted.rank} runs")
    answers = []
    for process in chosen:
        whole, is_first = wanted.rank is not None, process is chosen[0]  # NCCL's answer is about the whole job
        order = TakeStack(process.number, whole=whole, native=wanted.native, nccl=is_first, recorder=True)
        answers.append(process.agent.ask(order))
    await wait_for(answers, ANSWERS_S)
    stacks = []
    for process, answer in zip(chosen, answers, strict=True):
        location = stalls.complete(process, answer.result()) if answer.done() else UNANSWERED
        stacks.append(Stack(role=process.role, host=process.host, rank=process.rank, location=location))
    return Stacks(stacks=tuple(stacks))
