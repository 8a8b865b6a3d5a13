"""Judges the health of nodes by the reports of node/setup/health_report.py. Pure, except `read_kept`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from foundation.decode import decode
from node.protocol import Unhealthy

GPUS_TIMEOUT_S = 10.0
LOG_TIMEOUT_S = 5.0
MAX_APART_S = 5.0
KERNEL_LOG = (
    ("dmesg",),
    ("sudo", "-n", "dmesg"),
    ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"),
)
"""The commands that print the kernel's messages since the boot. A user may run some of them, or none."""
LEAST_MEMORY = 0.9  # of the type's memory: the kernel and its crash dump use a part
KERNEL_MIB = 256
KEPT = ".cluster/health.json"

# The Xids that mean a fault of the GPU, not of a program (https://docs.nvidia.com/deploy/xid-errors/). 63 and 94 are
# left out: the memory has been repaired, or the row is pending, which the GPU itself reports.
XIDS = {
    48: "double-bit ECC error",
    62: "its micro-controller halted",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "error of its system processor (GSP)",
    140: "unrecovered ECC error",
    143: "failed to initialize",
}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),\s*(.*)")


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU. error: why the driver cannot use it. None means that the GPU does not report the value.

    ecc_uncorrected: errors since the driver was loaded. throttled: the reasons.
    """

    name: str = ""
    bus: str = ""
    error: str | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    throttled: tuple[str, ...] | None = None


class Report(Struct, frozen=True, kw_only=True):
    """What a node reports. now: seconds since the epoch.

    read_only: (path, reason) of the folders that a job writes to and that are not writable. gpus: None without NVIDIA's
    driver. driver_error: why the driver does not work. xids: (bus id, number, text) of the kernel log since the boot;
    None if the user may not read it. kept: what `read_kept` returns on the head.
    """

    now: float
    memory_mib: int
    read_only: tuple[tuple[str, str], ...]
    gpus: tuple[Gpu, ...] | None
    driver_error: str | None
    xids: tuple[tuple[str, int, str], ...] | None
    kept: dict[str, Unhealthy]


def judge(report: Report, gpus: int | None = None, memory_mib: int | None = None) -> list[str]:
    """Why a node is unhealthy, in words; [] for a healthy one. Pure.

    gpus, memory_mib: those of its instance type; None if unknown. Without a driver, GPUs are not judged, because the
    fault is the image's.
    """
    found = [f"{path} cannot be written to: {why}" for path, why in report.read_only]
    if memory_mib is not None and is_short(report.memory_mib, memory_mib):
        found.append(f"{report.memory_mib} MiB of memory, and its type has {memory_mib} MiB")
    if report.driver_error is not None:
        found.append(f"NVIDIA's driver: {report.driver_error}")
    if report.gpus is not None:
        if gpus is not None and len(report.gpus) < gpus:
            found.append(f"{len(report.gpus)} of {gpus} GPUs")
        for index, gpu in enumerate(report.gpus):
            found += [f"GPU {index}{_shown(gpu.bus)}: {why}" for why in judge_gpu(gpu)]
    return found + judge_xids(report.xids or ())


def is_short(found_mib: int, type_mib: int) -> bool:
    """Whether a node lacks a part of the memory of its type. Pure."""
    return found_mib < LEAST_MEMORY * type_mib - KERNEL_MIB


def judge_gpu(gpu: Gpu) -> list[str]:
    """Why a GPU must not be used. Pure."""
    found = [gpu.error] if gpu.error is not None else []
    if gpu.ecc_uncorrected:
        found.append(f"{gpu.ecc_uncorrected} uncorrected ECC errors")
    if gpu.remap_failed:
        found.append("a row of its memory could not be remapped")
    elif gpu.remap_pending:
        found.append("a row of its memory waits to be remapped, which needs a reset")
    if gpu.retired_pending:
        found.append("a page of its memory waits to be retired, which needs a reset")
    if gpu.throttled:
        found.append(f"clocks throttled: {', '.join(gpu.throttled)}")
    return found


def parse_xids(log: str | None) -> tuple[tuple[str, int, str], ...] | None:
    """Returns the Xid messages of a kernel log as (bus id, number, text); None without a log. Pure."""
    if log is None:
        return None
    return tuple((bus, int(number), text.strip()[:200]) for bus, number, text in _XID.findall(log))


def judge_xids(xids: Iterable[tuple[str, int, str]]) -> list[str]:
    """The faults that a kernel log reports, each once for each GPU. Pure."""
    known = dict.fromkeys((bus, number) for bus, number, _ in xids if number in XIDS)
    return [f"Xid {number}{_shown(bus)}: {XIDS[number]}" for bus, number in known]


def _shown(bus: str) -> str:
    return f" ({bus})" if bus else ""


def judge_all(
    reports: Mapping[str, Report],
    types: Mapping[str, tuple[int | None, int | None]],
    ahead_s: Mapping[str, float],
) -> dict[str, list[str]]:
    """Why nodes are unhealthy, by name; only those that are. Pure.

    types: the number of GPUs and the memory in MiB of each node's type. ahead_s: by name, how far ahead a wrong clock
    is, in seconds. Missing memory counts only if at least one node has the memory of its type: if all nodes lack some,
    no single node is at fault.
    """
    whole = {
        name
        for name, report in reports.items()
        if types.get(name, (None, None))[1] is not None and not is_short(report.memory_mib, types[name][1] or 0)
    }
    found = {}
    for name, report in reports.items():
        gpus, memory_mib = types.get(name, (None, None))
        reasons = judge(report, gpus, memory_mib if whole else None)
        if name in ahead_s:
            reasons.append(render_clock_offset(ahead_s[name]))
        if reasons:
            found[name] = reasons
    return found


def render_clock_offset(ahead_s: float) -> str:
    """Describes a clock that is wrong by `ahead_s` seconds. Pure."""
    return f"its clock is {abs(ahead_s):.1f} s {'ahead' if ahead_s >= 0 else 'behind'}"


# -- on the head -------------------------------------------------------------------------------------------------------


def read_kept() -> dict[str, Unhealthy]:
    """Returns the unhealthy nodes that unhealthy_nodes.py has stored on this host; {} without a readable file."""
    try:
        return decode((Path.home() / KEPT).read_bytes(), dict[str, Unhealthy])
    except (OSError, ValueError):
        return {}
