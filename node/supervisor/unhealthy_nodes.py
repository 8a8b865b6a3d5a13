"""Finds unhealthy nodes after a failed job: runs health_report.py on all of its hosts at the same time."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import json

from foundation.decode import decode
from foundation.remote_command import run_program
from node import health, job_folder, ssh
from node.children import run
from node.protocol import JobHost, Unhealthy

TIMEOUT_S = health.GPUS_TIMEOUT_S + 5.0
CONNECT_S = 5


async def find_unhealthy(hosts: Sequence[JobHost], silent: Collection[str]) -> dict[str, list[str]]:
    """Returns the unhealthy hosts of a job, by name, with the reasons. Hosts that do not answer are not judged.

    hosts: the head first. silent: the names of those that are known not to answer. Takes at most TIMEOUT_S.
    """
    present = [host for host in hosts if host.name not in silent]
    answers = await asyncio.gather(*(check(host, is_here=host == hosts[0]) for host in present))
    found = {host.name: answer for host, answer in zip(present, answers, strict=True) if answer is not None}
    reports = {name: report for name, (report, _) in found.items()}
    ahead_s = {name: offset_s for name, (_, offset_s) in found.items() if abs(offset_s) > health.MAX_APART_S}
    types = {host.name: (host.gpus, host.memory_mib) for host in present}
    return health.judge_all(reports, types, ahead_s)


async def check(host: JobHost, *, is_here: bool) -> tuple[health.Report, float] | None:
    """Runs health_report.py on a host. Returns its report, and how many seconds its clock is certainly ahead of ours.

    Negative: behind. None: it fails, or does not answer in time. Raises OSError.
    """
    words = ssh.words_on(host, "health")
    if not is_here:
        words = ssh.ssh_command(host, run_program(*words), connect_timeout_s=CONNECT_S)
    began_at = time.time()
    ended = await run(words, TIMEOUT_S)
    try:
        report = decode(ended.stdout.strip().rpartition(b"\n")[2], health.Report)
    except ValueError:
        return None
    offset_s = min(0.0, report.now - began_at) + max(0.0, report.now - time.time())
    return (report, offset_s) if ended.code == 0 else None


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
        job_folder.write_whole(str(Path.home() / health.KEPT), json.encode(kept))


def render(unhealthy: Mapping[str, Sequence[str]]) -> str:
    """Returns the unhealthy nodes and the reasons as text. Pure."""
    return "; ".join(f"{name} is unhealthy: {', '.join(reasons)}" for name, reasons in unhealthy.items())
