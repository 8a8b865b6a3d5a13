"""Samples of GPUs, with the answers of a driver in place of NVML. No test here has seen a real GPU."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from node.agent import sampler
from node.agent.gpus import read_gpus
from node.samples import GpuSample, Sample


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


def test_a_driver_that_hangs_does_not_stop_the_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: Callable[..., None]
) -> None:
    async def hang() -> None:
        await asyncio.sleep(600)

    async def sample() -> list[Sample]:
        found: asyncio.Queue[Sample] = asyncio.Queue()
        watching = asyncio.ensure_future(sampler.watch("job-1", "node-0", "CLUSTER_PROCESS", found.put_nowait))
        taken = [await found.get() for _ in range(3)]
        watching.cancel()
        return taken

    monkeypatch.setattr(sampler, "NVIDIA", str(tmp_path))
    monkeypatch.setattr(sampler, "EVERY_S", 0.01)
    monkeypatch.setattr(sampler, "MOST_SHARE", 1.0)
    monkeypatch.setattr(sampler, "GPUS_TIMEOUT_S", 0.01)
    monkeypatch.setattr(sampler, "_read_gpus", hang)
    assert [one.gpus for one in asyncio.run(sample())] == [(), (), ()]
