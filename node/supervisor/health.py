"""Finds unhealthy nodes after a failed job: runs health.py on all of its hosts at the same time."""

import subprocess
import time
from collections.abc import Collection, Mapping, Sequence

from foundation.decode import decode
from foundation.remote_command import run_program
from node import health, ssh
from node.programs import CODE_DIR, program_words
from node.protocol import JobHost, Unhealthy

TIMEOUT_S = health.GPUS_TIMEOUT_S + 5.0
CONNECT_S = 5


def find_unhealthy(
    hosts: Sequence[JobHost], silent: Collection[str], *, head: JobHost, python: str
) -> dict[str, list[str]]:
    """Returns the unhealthy hosts, by name, with the reasons. Hosts that do not answer are not judged.

    silent: the names of hosts that are known not to answer. python: that of the nodes. Takes at most TIMEOUT_S.
    """
    looks = [_Look(host, is_here=host == head, python=python) for host in hosts if host.name not in silent]
    deadline = time.monotonic() + TIMEOUT_S
    reports, ahead_s = {}, {}
    for one in looks:
        report = one.read(deadline)
        if report is None:
            continue
        reports[one.host.name] = report
        offset_s = one.find_offset(report)
        if abs(offset_s) > health.MAX_APART_S:
            ahead_s[one.host.name] = offset_s
    types = {one.host.name: (one.host.gpus, one.host.memory_mib) for one in looks}
    return health.judge_all(reports, types, ahead_s)


def keep(hosts: Sequence[JobHost], unhealthy: Mapping[str, Sequence[str]]) -> None:
    """Stores the verdict on a job's hosts on this host, the head, next to those on other hosts. Raises OSError."""
    names = {host.name for host in hosts}
    before = health.read_kept()
    kept = {name: entry for name, entry in before.items() if name not in names}
    kept.update(
        {
            host.name: Unhealthy(id=host.instance_id or host.name, reasons=tuple(unhealthy[host.name]))
            for host in hosts
            if host.name in unhealthy
        }
    )
    if kept != before:
        health.keep(kept)


def render(unhealthy: Mapping[str, Sequence[str]]) -> str:
    """Returns the unhealthy nodes and the reasons as text. Pure."""
    return "; ".join(f"{name} is unhealthy: {', '.join(reasons)}" for name, reasons in unhealthy.items())


class _Look:
    """health.py on a host, from its start to its end."""

    def __init__(self, host: JobHost, *, is_here: bool, python: str) -> None:
        self.host = host
        place = host.place
        words = program_words(
            "health",
            python=python if place is None else place.python,
            code_dir=CODE_DIR if place is None else place.code_dir,
        )
        self._began_at = self._ended_at = time.time()
        self._child = subprocess.Popen(
            words if is_here else ssh.ssh_command(host, run_program(*words), connect_timeout_s=CONNECT_S),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self, deadline: float) -> health.Report | None:
        """Returns its report; None if it fails, or does not answer before `deadline` (monotonic clock)."""
        try:
            out, _ = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            return None
        self._ended_at = time.time()
        try:
            found = decode(out.strip().rpartition(b"\n")[2], health.Report)
        except ValueError:
            return None
        return found if self._child.returncode == 0 else None

    def find_offset(self, report: health.Report) -> float:
        """Returns by how many seconds its clock is certainly ahead of this one, or behind if negative."""
        return min(0.0, report.now - self._began_at) + max(0.0, report.now - self._ended_at)
