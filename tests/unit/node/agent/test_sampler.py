"""What the agent samples: the node's counters and levels, and the use of each of the job's processes."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from node.agent.process import MARK
from node.agent.sampler import Processes, find_rates
from node.samples import ProcessSample
from node.wire import Sampled
from node_agent import home, run_agent
from waits import until

__all__ = ["home"]

SPIN = "while True: pass"


@pytest.mark.parametrize(
    ("before", "now", "rates"),
    [
        ({}, {"busy": 50, "all": 200, "read": 50, "sent": 10}, {"cpu": 25.0, "read": 10, "sent": 2}),
        ({"read": 900}, {"read": 10}, {}),  # an interface that was made again
        ({}, {"busy": 9, "all": 5}, {"cpu": 100.0}),
    ],
)
def test_rates_between_two_readings(before: dict[str, int], now: dict[str, int], rates: dict[str, float]) -> None:
    none = dict.fromkeys(("busy", "all", "read", "written", "received", "sent"), 0)
    nothing = dict.fromkeys(("cpu", "read", "written", "received", "sent"), 0)
    assert find_rates(none | before, none | now, 5.0) == nothing | rates


@contextmanager
def running(*processes: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


class Uses:
    """What the processes of a job have used since the first sample, in seconds."""

    def __init__(self) -> None:
        self._processes = Processes("job-1", MARK)
        self.cpu_s: dict[int, float] = defaultdict(float)
        self.delayed_s: dict[int, float] = defaultdict(float)

    def sample(self) -> dict[int, ProcessSample]:
        found = {one.p: one for one in self._processes.sample(1.0)}
        for p, one in found.items():
            self.cpu_s[p] += one.cpu
            self.delayed_s[p] += one.delayed
        return found


def start(program: str, mark: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-Sc", program]
    return subprocess.Popen(command, env={**os.environ, MARK: mark}, start_new_session=True)


def test_threads_that_wait_for_a_cpu_are_delayed() -> None:
    crowd = [start(f"import os; os.sched_setaffinity(0, {{0}})\n{SPIN}", f"job-1/{number}") for number in range(2)]
    with running(*crowd):
        used = Uses()
        until(lambda: used.sample().keys() == {0, 1} and min(used.delayed_s.values()) > 0.1)


def test_the_agent_sends_samples(home: object) -> None:
    with run_agent() as agent:
        agent.start("sleep", "600", p=3)
        sample = agent.read_until(Sampled).sample
    assert sample.host == "node-0"
    assert [process.p for process in sample.processes] == [3]
