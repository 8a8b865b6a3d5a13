"""Observes the health of this node: GPUs, kernel log, disks and memory; node/health.py judges it.

It runs on a node before a job and after a failed one, and prints a Report as one line of JSON.
"""

import errno
import glob
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pynvml
from msgspec import json

from node.health import GPUS_TIMEOUT_S, LOG_TIMEOUT_S, Gpu, Report, parse_xids, read_kept

NVIDIA, DEVICES = "0x10de", "/sys/bus/pci/devices/*/vendor"
THROTTLED_FOR_S = 0.1  # a reason that is gone after this time does not count
THROTTLED = (  # nvml.h
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)


def describe() -> Report:
    """Observes this host. Returns the report. If the GPUs' driver hangs, waits for it for GPUS_TIMEOUT_S at most."""
    gpus, driver_error = describe_gpus(GPUS_TIMEOUT_S)
    home = os.path.expanduser("~")
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - tempfile.gettempdir() fails on a full disk
    return Report(
        now=time.time(),
        memory_mib=int(Path("/proc/meminfo").read_text().split()[1]) >> 10,  # psutil takes 10 ms to import
        read_only=find_read_only([home, os.path.join(home, ".cluster"), temporary]),
        gpus=gpus,
        driver_error=driver_error,
        xids=() if gpus is None and driver_error is None else parse_xids(read_kernel_log()),
        kept=read_kept(),
    )


def find_read_only(folders: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Finds the folders where no file can be written, one for each file system, as (path, reason).

    A full disk does not count.
    """
    found: list[tuple[str, str]] = []
    seen = set()
    for folder in folders:
        if not os.path.isdir(folder):
            continue  # for instance ~/.cluster before the first set-up
        device = os.stat(folder).st_dev
        if device in seen:
            continue
        seen.add(device)
        try:
            why = _try_to_write(folder)
        except PermissionError:
            why = None
        except OSError as error:
            why = None if error.errno in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error.errno or 0)
        if why is not None:
            found.append((folder, why))
    return tuple(found)


def _try_to_write(folder: str) -> str | None:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "mounted read-only"
    descriptor, path = tempfile.mkstemp(prefix=".cluster-health-", dir=folder)
    os.close(descriptor)
    os.unlink(path)
    return None


def read_kernel_log() -> str | None:
    """The kernel's messages since the boot; None if this user may not read them."""
    import asyncio  # noqa: PLC0415 - half of this program's start, which most nodes need not wait for

    from node.agent import clues  # noqa: PLC0415 - it imports asyncio

    return asyncio.run(clues.read_kernel_log(LOG_TIMEOUT_S)) or None


# -- GPUs --------------------------------------------------------------------------------------------------------------


def describe_gpus(timeout_s: float) -> tuple[tuple[Gpu, ...] | None, str | None]:
    """Returns (GPUs, driver error); (None, None) without a driver.

    Uses a thread, because the driver of a broken GPU can hang.
    """
    found: list[tuple[tuple[Gpu, ...] | None, str | None]] = []
    thread = threading.Thread(target=lambda: found.append(read_gpus()), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else (None, f"did not answer within {timeout_s:g} s")


def read_gpus() -> tuple[tuple[Gpu, ...] | None, str | None]:
    """Like describe_gpus, but without a time limit."""
    try:
        pynvml.nvmlInit()
        gpus = _read_all()
        if any(gpu.throttled for gpu in gpus):
            time.sleep(THROTTLED_FOR_S)
            gpus = _read_all()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        is_missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        is_idle = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED and not has_device()
        return None, None if is_missing or is_idle else str(error)
    return gpus, None


def has_device() -> bool:
    """Whether this host has a device of NVIDIA's. Deep Learning AMIs have its driver on CPU types, too."""
    return any(Path(path).read_text().strip() == NVIDIA for path in glob.glob(DEVICES))


def _read_all() -> tuple[Gpu, ...]:
    """Reads all GPUs that the driver counts. Raises NVMLError."""
    return tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount()))


def _read(index: int) -> Gpu:
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Gpu(error=str(error))

    def ask(function: Callable[..., Any], *args: Any) -> Any:
        """Returns what the GPU reports; None if it does not report that. Raises NVMLError for a lost GPU."""
        try:
            return function(device, *args)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return None

    name = bus = ""
    try:
        name, pci = ask(pynvml.nvmlDeviceGetName) or "", ask(pynvml.nvmlDeviceGetPciInfo)
        bus = pci.busId if pci is not None else ""
        rows = ask(pynvml.nvmlDeviceGetRemappedRows)
        retired = ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)
        reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return Gpu(
            name=name,
            bus=bus,
            ecc_uncorrected=ask(
                pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            ),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            retired_pending=None if retired is None else bool(retired),
            throttled=None if reasons is None else tuple(words for bit, words in THROTTLED if reasons & bit),
        )
    except pynvml.NVMLError as error:
        return Gpu(name=name, bus=bus, error=str(error))


def main() -> None:
    """Prints the report, as one line of JSON."""
    print(json.encode(describe()).decode())
    sys.stdout.flush()
    os._exit(0)  # a thread may hang in the driver
