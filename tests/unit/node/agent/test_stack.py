"""Where a Python program is, as py-spy finds it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.agent import stack
from node.agent.agent import Agent
from node.children import Ended
from node.job.stacks import Frame, Location, find_location
from node.setup import process_tree
from node.wire import Placed, TakeStack

MAIN = Frame("<module>", "/jobs/1/work/train.py", 11, "train.py")
REDUCE = Frame("all_reduce", "/e/site-packages/torch/distributed/c10d.py", 3, "torch/distributed/c10d.py")
SAVE = Frame(
    "save", "/e/site-packages/torch/distributed/checkpoint/saver.py", 9, "torch/distributed/checkpoint/saver.py"
)
PULL = Frame("NDArray.wait_to_read", "/e/site-packages/mxnet/ndarray/ndarray.py", 9, "mxnet/ndarray/ndarray.py")
INVOKE = Frame("_imperative_invoke", "/e/site-packages/mxnet/_ctypes/ndarray.py", 9, "mxnet/_ctypes/ndarray.py")
BARRIER = Frame("PMPI_Barrier", "/e/lib/libmpi.so.40", 0)
NATIVE = Frame("pthread_cond_wait", "libc.so.6", 0)
IMPORT = Frame("_find_and_load", "<frozen importlib._bootstrap>", 5)
DELETE = Frame("KVStore.__del__", "/e/lib/python3.11/site-packages/mxnet/kvstore.py", 73, "mxnet/kvstore.py")


@pytest.mark.parametrize(
    ("frames", "location"),
    [
        ((), ""),
        ((MAIN,), "train.py:11"),
        ((REDUCE, MAIN), "train.py:11 (all_reduce)"),
        ((REDUCE, Frame("step", "/w/my/steps.py", 7, "my/steps.py"), MAIN), "my/steps.py:7 (all_reduce)"),
        ((IMPORT, MAIN), "train.py:11 (_find_and_load)"),
        ((Frame("<module>", "/usr/lib/python3/runpy.py", 2, "runpy.py"),), "runpy.py:2"),
        ((REDUCE, Frame("<module>", "<string>", 4)), "<string>:4 (all_reduce)"),
        ((INVOKE, Frame("dot", "<string>", 39), MAIN), "train.py:11 (_imperative_invoke)"),  # MXNet's generated code
        ((Frame("<module>", "/w/\x1b.py", 2, "\x1b.py"),), "?.py:2"),
        ((DELETE,), "the end of the program (KVStore.__del__)"),
        ((NATIVE, REDUCE, MAIN), "train.py:11 (all_reduce)"),
        ((Frame("load", "/w/data.py", 88, "data.py"), MAIN), "data.py:88 in load()"),
    ],
)
def test_the_programs_own_line_and_what_it_calls(frames: tuple[Frame, ...], location: str) -> None:
    assert find_location(frames).text == location


@pytest.mark.parametrize(
    ("frame", "waits"),
    [(REDUCE, True), (PULL, True), (SAVE, False), (IMPORT, False), (DELETE, False), (MAIN, False), (BARRIER, True)],
)
def test_functions_that_wait_for_other_processes(frame: Frame, *, waits: bool) -> None:
    assert find_location([frame] if frame is DELETE else [frame, MAIN]).waits == waits


# -- py-spy ------------------------------------------------------------------------------------------------------------

STACK = Ended(0, b'[{"os_thread_id": 7, "frames": [{"name": "<module>", "filename": "/w/a.py", "line": 3}]}]', b"")
REFUSED = Ended(1, b"", b"Permission Denied: Try running again with elevated permissions")
NO_SUDO = Ended(1, b"", b"sudo: a password is required\n")
NOT_PYTHON = Ended(1, b"", b"Error: Failed to find python version from target process\n\nStack backtrace:")
TORN = Ended(1, b"", b"Error: Failed to get stack traces\n")
LATE = Ended(None, b"", b"")
FOUND = Location(text="/w/a.py:3", stack="<module> (/w/a.py:3)")


@pytest.mark.parametrize(
    ("answers", "location"),
    [
        ([STACK], FOUND),
        ([TORN, STACK], FOUND),
        ([TORN, TORN, TORN], Location(why="Failed to get stack traces")),
        ([REFUSED, STACK], FOUND),
        (
            [REFUSED, NO_SUDO],
            Location(
                why="only root may read its memory (kernel.yama.ptrace_scope is 1), and sudo -n failed: "
                "sudo: a password is required"
            ),
        ),
        ([NOT_PYTHON], Location(why="it runs no Python program")),
        ([LATE], Location(why="py-spy did not answer within 3 s")),
        ([FileNotFoundError("py-spy")], Location(why="cannot run py-spy: py-spy")),
    ],
)
def test_a_stack_or_the_reason_for_none(
    monkeypatch: pytest.MonkeyPatch, answers: list[Ended | OSError], location: Location
) -> None:
    asked: list[str] = []

    async def run(words: list[str], _timeout_s: float) -> Ended:
        asked.append(words[0])
        answer = answers[len(asked) - 1]
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(stack, "run", run)
    monkeypatch.setattr(process_tree, "read", lambda *_: b"1\n")
    monkeypatch.setattr(process_tree, "start_time", lambda _: 1)
    assert asyncio.run(stack.take([(7, 1, "python a.py")])) == location
    assert len(asked) == len(answers)
    assert ("sudo" in asked) == (REFUSED in answers)


def test_a_program_is_stopped_for_one_user_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, answers = [0], list[Placed]()

    async def take(*_: Any, **__: Any) -> Location:
        looks[0] += 1
        await asyncio.sleep(0)
        looks[0] -= 1
        return Location(why=f"{looks[0]} others look")

    async def look() -> None:
        agent: Any = SimpleNamespace(_looking=asyncio.Semaphore(4), send=answers.append)
        process: Any = SimpleNamespace(number=0, find=list, looking=asyncio.Lock())
        wanted = (TakeStack(0, asked=number, native=True) for number in (1, 2))
        await asyncio.gather(*(Agent._take_stack(agent, process, one) for one in wanted))

    monkeypatch.setattr(stack, "take", take)
    asyncio.run(look())
    assert [(one.asked, one.location.why) for one in answers] == [(1, "0 others look"), (2, "0 others look")]
