"""Samples this node, by psutil, and its processes of the job every few seconds; GPUs by NVML.

It costs at most MOST_SHARE of a core: a node with very many threads is sampled less often.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from node import job_folder
from node.samples import GpuSample, ProcessSample, Sample
from node.setup import process_tree
from node.setup.containers.engine import CONTAINER_VARIABLE

EVERY_S = 5.0
MOST_SHARE = 0.004
GPUS_TIMEOUT_S = 2.0
REVISE_EVERY = 12  # samples: a process may have been seen between its fork and its exec, with another environment
NVIDIA = "/dev/nvidiactl"
PARTS = ("loop", "ram", "zram", "dm-", "md")  # devices whose bytes are memory's, or those of others again
MOST_PROCESSES = 1 << 15  # ProcessNumber
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def watch(job: str, host: str, mark: str, send: Callable[[Sample], None]) -> None:
    """Samples until it is cancelled. mark: the variable with the job and the number of the process (JobProcess)."""
    has_gpus = await asyncio.to_thread(os.path.exists, NVIDIA)
    gpus: asyncio.Future[tuple[GpuSample, ...]] | None = None
    pause_s = EVERY_S / 5  # the agent calls this late
    # An unusual kernel costs the job nothing.
    with contextlib.suppress(OSError, ValueError, LookupError, NotImplementedError):
        sampler = await asyncio.to_thread(Sampler, job, host, mark)
        while True:
            await asyncio.sleep(pause_s)
            if has_gpus:
                if gpus is None or gpus.done():
                    gpus = asyncio.ensure_future(asyncio.to_thread(_read_gpus))
                await asyncio.wait([gpus], timeout=GPUS_TIMEOUT_S)  # a broken driver hangs; the rest goes on
            sample, took_s = await asyncio.to_thread(sampler.take, gpus.result() if gpus and gpus.done() else ())
            send(sample)
            pause_s = max(EVERY_S, took_s / MOST_SHARE)


def _read_gpus() -> tuple[GpuSample, ...]:
    from node.agent.gpus import read_gpus  # noqa: PLC0415 - most nodes have none

    return read_gpus()


Counters = Mapping[str, float]
"""A node's counters since its boot: `busy` and `all` of its CPUs, in seconds; the others in bytes."""


class Sampler:
    """Takes the samples of a node, each over the time since the one before, the first since now."""

    def __init__(self, job: str, host: str, mark: str) -> None:
        self._host = host
        self._disks = frozenset(name for name in _list("/sys/block") if not name.startswith(PARTS))
        self._processes = Processes(job, mark)
        self._processes.sample(1.0)  # they have run for a while
        self._at, self._before = time.monotonic(), self._read_counters()

    def take(self, gpus: tuple[GpuSample, ...]) -> tuple[Sample, float]:
        """Returns a sample, and the seconds of CPU time that it has cost."""
        began = time.thread_time()
        before, since = self._before, self._at
        self._at, self._before = time.monotonic(), self._read_counters()
        over_s = max(self._at - since, 1e-3)
        processes = self._processes.sample(over_s)
        sample = Sample(
            t=round(time.time(), 3),
            host=self._host,
            over_s=round(over_s, 3),
            **find_rates(before, self._before, over_s),
            **_read_levels(),
            gpus=gpus,
            processes=processes,
        )
        return sample, time.thread_time() - began

    def _read_counters(self) -> Counters:
        times = psutil.cpu_times()
        busy_s = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        by_disk, by_interface = psutil.disk_io_counters(perdisk=True), psutil.net_io_counters(pernic=True)
        disks = [counters for name, counters in by_disk.items() if name in self._disks]
        interfaces = [counters for name, counters in by_interface.items() if name != "lo"]
        return {
            "busy": busy_s,
            "all": busy_s + times.idle + times.iowait,
            "read": sum(disk.read_bytes for disk in disks),
            "written": sum(disk.write_bytes for disk in disks),
            "received": sum(interface.bytes_recv for interface in interfaces),
            "sent": sum(interface.bytes_sent for interface in interfaces),
        }


def find_rates(before: Counters, now: Counters, over_s: float) -> dict[str, float]:
    """Returns the rates of a Sample between two readings. Pure. A counter that begins again counts as 0."""
    grown = {name: max(0, value - before[name]) for name, value in now.items()}
    cpu = 100 * grown.pop("busy") / max(0.01, grown.pop("all"))
    return {"cpu": round(min(cpu, 100.0), 1), **{name: round(value / over_s) for name, value in grown.items()}}


def _read_levels() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    levels = {"memory": memory.total - memory.available, "memory_total": memory.total}
    for name, path in (("shm", "/dev/shm"), ("disk", job_folder.root())):  # noqa: S108 - only asked for its size
        try:
            found = os.statvfs(path)
        except OSError:  # there is none
            continue
        levels[name] = (found.f_blocks - found.f_bfree) * found.f_frsize
        levels[f"{name}_total"] = found.f_blocks * found.f_frsize
    return levels


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # the process is gone
        return []


class Processes:
    """The job's processes on this node. Each one's files are opened only if it is of the job, or new."""

    def __init__(self, job: str, mark: str) -> None:
        self._mark = f"{mark}={job}/".encode()
        self._container = f"{CONTAINER_VARIABLE}={process_tree.container_prefix(job)}".encode()
        self._owners: dict[int, int | None] = {}  # for each pid, the number of the job's process that it belongs to
        self._cpu: dict[int, int] = {}  # the ticks of each of the job's processes
        self._delayed: dict[str, int] = {}  # the nanoseconds of each thread
        self._left = REVISE_EVERY

    def sample(self, over_s: float) -> tuple[ProcessSample, ...]:
        """Returns what each of the job's processes, with those that it has started, has used for `over_s` seconds."""
        self._find()
        cpu: dict[int, int] = {}
        memory: dict[int, int] = {}
        delays: dict[int, int] = {}
        delayed: dict[str, int] = {}
        for pid, number in self._owners.items():
            fields = process_tree.stat(pid) if number is not None else None
            if number is None or fields is None:
                continue
            cpu[number] = cpu.get(number, 0) + sum(int(field) for field in fields[11:15])  # with ended children
            memory[number] = memory.get(number, 0) + int(fields[21]) * _PAGE_BYTES
            for thread in _list(f"/proc/{pid}/task"):
                words = process_tree.read(pid, f"task/{thread}/schedstat").split()
                if len(words) == 3:  # not in kernels that do not count it
                    delayed[thread] = int(words[1])
                    delays[number] = delays.get(number, 0) + max(0, delayed[thread] - self._delayed.get(thread, 0))
        before, self._cpu, self._delayed = self._cpu, cpu, delayed
        return tuple(
            ProcessSample(
                p=number,
                cpu=round(max(0, cpu[number] - before.get(number, 0)) / _TICKS_PER_S / over_s, 3),
                delayed=round(delays.get(number, 0) / 1e9 / over_s, 3),
                memory=memory[number],
            )
            for number in sorted(cpu)
        )

    def _find(self) -> None:
        """Finds the owners of new pids, and forgets ended ones."""
        self._left -= 1
        kept = {pid: owner for pid, owner in self._owners.items() if owner is not None or self._left}
        self._left = self._left or REVISE_EVERY
        self._owners = {}
        for pid in sorted(process_tree.all_pids()):  # a parent before its children
            self._owners[pid] = kept[pid] if pid in kept else self._find_owner(pid)

    def _find_owner(self, pid: int) -> int | None:
        """Returns the number in a process's environment, or else that of its parent."""
        words = b""
        for variable in process_tree.read(pid, "environ").split(b"\0"):
            if variable.startswith(self._mark):
                words = variable[len(self._mark) :]
            elif variable.startswith(self._container) and variable.count(b"-", len(self._container)) == 3:
                words = variable.split(b"-")[-2]  # Contained.name
        if words:
            return int(words) if int(words) < MOST_PROCESSES else None  # the others are mpirun's daemons
        fields = process_tree.stat(pid)
        return self._owners.get(int(fields[1])) if fields is not None else None
