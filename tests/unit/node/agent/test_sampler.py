"""What the agent samples: the node's counters and levels, and the use of each of the job's processes."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from node.agent.process import MARK
from node.agent.sampler import Processes, Sampler, find_rates
from node.wire import Sampled
from node_agent import home, run_agent
from waits import until

__all__ = ["home"]


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


def test_threads_that_wait_for_a_cpu_are_delayed() -> None:
    words = [sys.executable, "-Sc", "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"]
    crowd = [subprocess.Popen(words, env={**os.environ, MARK: f"job-1/{number}"}) for number in range(2)]
    processes, delayed_s = Processes("job-1", MARK), Counter[int]()

    def are_delayed() -> bool:
        for one in processes.sample(1.0):
            delayed_s[one.p] += one.delayed  # type: ignore[assignment] # seconds
        return delayed_s.keys() == {0, 1} and min(delayed_s.values()) > 0.1

    try:
        until(are_delayed)
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_the_first_sample_has_no_time_before_it() -> None:
    busy = [sys.executable, "-Sc", "import os\nwhile sum(os.times()[:2]) < 1: pass\nprint(flush=True); input()"]
    env = {**os.environ, MARK: "job-1/0"}
    with subprocess.Popen(busy, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sample, _ = Sampler("job-1", "node-0", MARK).take(())
        process.kill()
    assert [one.cpu for one in sample.processes] == [0.0]


def test_the_agent_sends_samples(home: object) -> None:
    with run_agent() as agent:
        agent.start("sleep", "600", p=3)
        sample = agent.read_until(Sampled).sample
    assert sample.host == "node-0"
    assert [process.p for process in sample.processes] == [3]
