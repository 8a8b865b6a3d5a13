"""The CPU time of a job on sandbox nodes, and of the other processes on the nodes."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTimes:
    """The CPU seconds of the nodes' current processes, by (process id, start time)."""

    job: dict[tuple[str, str], float]
    others: dict[tuple[str, str], float]


def grown(before: dict[tuple[str, str], float], now: dict[tuple[str, str], float]) -> float:
    """Returns the CPU seconds that the processes have used between two measurements."""
    return sum(seconds - before.get(process, 0.0) for process, seconds in now.items())


def read_cpu_times(sandbox: str, script: str) -> CpuTimes:
    """Returns the CPU times of all processes in the pid namespaces of a sandbox's nodes.

    The job's processes are those that run the script.
    """
    processes: list[tuple[str, bytes, list[str], str]] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit():
                words = (folder / "cmdline").read_bytes()
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                processes.append((folder.name, words, fields, str((folder / "ns" / "pid").readlink())))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or belongs to another user
    first = f"pid1.py\0ec2-sandbox:{sandbox}:".encode()
    outside = str(Path("/proc/self/ns/pid").readlink())
    nodes = {namespace for _, words, _, namespace in processes if first in words} - {outside}
    assert nodes
    found = CpuTimes(job={}, others={})
    for number, words, fields, namespace in processes:
        if namespace in nodes:
            is_launcher = any(name in words for name in (b"launch.py", b"torchrun", b"torch.distributed.run"))
            kind = found.job if script.encode() in words and not is_launcher else found.others
            kind[number, fields[19]] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
