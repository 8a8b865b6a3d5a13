"""Samples of GPUs, with the answers of a driver in place of NVML. No test here has seen a real GPU."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from node.agent.gpus import read_gpus
from node.programs import CODE_DIR
from node.samples import GpuSample
from node.wire import Exited, Sampled
from node_agent import home, run_agent

__all__ = ["home"]


def refuse(code: int) -> Callable[..., Any]:
    def call(*_: Any) -> None:
        raise pynvml.NVMLError(code)

    return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def answer(**functions: Any) -> None:
        for name, value in functions.items():
            call = value if callable(value) else lambda *_, found=value: found
            monkeypatch.setattr(pynvml, f"nvml{name}", call)

    answer(
        Init=None,
        DeviceGetCount=1,
        DeviceGetHandleByIndex="handle",
        DeviceGetUtilizationRates=SimpleNamespace(gpu=93),
        DeviceGetMemoryInfo=SimpleNamespace(used=5 << 30, total=80 << 30),
        DeviceGetPowerUsage=287_500,
        DeviceGetCurrentClocksThrottleReasons=0x04 | 0x40,
        DeviceGetTemperature=71,
        DeviceGetTotalEccErrors=refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )
    return answer


def test_what_gpus_report(driver: Callable[..., None]) -> None:
    assert read_gpus() == (
        GpuSample(
            index=0,
            use=93,
            memory=5 << 30,
            memory_total=80 << 30,
            power_w=287.5,
            temperature=71,
            throttled="hardware thermal slowdown, software power cap",
        ),
    )
    driver(DeviceGetHandleByIndex=refuse(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert read_gpus() == (GpuSample(index=0),)


@pytest.mark.parametrize("error", [refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), lambda: bytes([0xFF]).decode()])
def test_a_broken_driver_has_no_gpus(driver: Callable[..., None], error: Callable[..., Any]) -> None:
    driver(Init=error)
    assert read_gpus() == ()


BROKEN = f"""
import sys, time
sys.path.insert(0, {CODE_DIR!r})
import pynvml
from node.agent import agent, sampler

def init():
    {{}}

pynvml.nvmlInit = init
agent.START_S, sampler.EVERY_S, sampler.GPUS_TIMEOUT_S, sampler.NVIDIA = 0.0, 0.1, 0.1, "/"
agent.main()
"""


@pytest.mark.parametrize("how", ["raise RuntimeError", "time.sleep(600)"])
def test_a_job_beside_a_dead_driver(home: object, how: str) -> None:
    """It costs the job nothing: its lines, its other samples, its end and the agent's."""
    with run_agent(words=[sys.executable, "-c", BROKEN.format(how)]) as agent:
        agent.start("sh", "-c", "echo begins; sleep 600", p=3)
        assert agent.read_line(3) == "begins"
        found = [agent.read_until(Sampled).sample for _ in range(3)]
        agent.start("sh", "-c", "echo goes on; exit 7")
        assert agent.read_line() == "goes on"
        assert agent.read_until(Exited).exit_code == 7
        closed = agent.end()
    assert [(one.gpus, [process.p for process in one.processes]) for one in found] == [((), [3])] * 3
    assert not closed.left
