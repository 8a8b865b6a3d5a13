"""Samples this node's GPUs, by NVML. Only nodes with a driver import this module."""

from collections.abc import Callable
from typing import Any

import pynvml

from node.samples import GpuSample
from node.setup.health_report import THROTTLED

_POWER_CAP = (0x04, "software power cap")  # nvml.h; health does not count it: it is usual at full load
_REASONS = (*THROTTLED, _POWER_CAP)


def read_gpus() -> tuple[GpuSample, ...]:
    """Returns what all GPUs report; () if the driver does not work. A broken driver may hang."""
    try:
        pynvml.nvmlInit()  # counts the calls; only the first one is expensive
        return tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except Exception:  # noqa: BLE001 - whatever a broken driver answers, it costs the job nothing
        return ()


def _read(index: int) -> GpuSample:
    """Returns what a GPU reports; an empty sample if it is lost."""

    def ask(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(device, *args)
        except pynvml.NVMLError:  # it does not report that
            return None

    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return GpuSample(index=index)
    use, memory = ask(pynvml.nvmlDeviceGetUtilizationRates), ask(pynvml.nvmlDeviceGetMemoryInfo)
    power = ask(pynvml.nvmlDeviceGetPowerUsage)
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    errors = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    return GpuSample(
        index=index,
        use=None if use is None else use.gpu,
        memory=None if memory is None else memory.used,
        memory_total=None if memory is None else memory.total,
        power_w=None if power is None else power / 1000,
        temperature=ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        throttled=", ".join(words for bit, words in _REASONS if reasons & bit),
        errors=ask(pynvml.nvmlDeviceGetTotalEccErrors, *errors),
    )
