"""Completes the record and the log of a job whose supervisor was killed, and ends its processes."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from msgspec.structs import replace

from foundation.file_lock import FileLock, is_held
from foundation.remote_command import HIDDEN
from node import job_folder
from node.engines.schedulers import SCHEDULERS
from node.job.cost import cost_of, find_cost
from node.protocol import Attempt, EndReason, JobHost, JobResult, Left, Record
from node.supervisor import job_log, launching
from node.supervisor.publish import Copying

RECOVERY_TIMEOUT_S = 30.0
COPY_S = 15.0
ALIVE_EVERY_S = 10.0
ELSEWHERE_S = 60.0  # since the last sign of life
LOOK_S = 1.0  # for a process that only checks whether the lock is held


def is_alive(job: str) -> bool:
    """Whether a supervisor runs this job."""
    record = job_folder.read_record(job)
    if record is None or record.has_ended:
        return False
    return is_held(job_folder.path(job, "lock")) or find_elsewhere(record) != ""


def find_elsewhere(record: Record) -> str:
    """The name of another host that runs the job; "" if none does.

    It has the same home folder, on which its lock may not count here (Lustre, BeeGFS, sshfs), but the time of it does.
    """
    host = record.supervisor.host if record.supervisor is not None else ""
    if host in ("", os.uname().nodename):
        return ""
    return host if time.time() - os.path.getmtime(job_folder.path(record.id, "lock")) < ELSEWHERE_S else ""


async def show_life(job: str) -> NoReturn:
    """Renews the time of the lock, by which other hosts with this home folder know that the job runs.

    Not that of the record: for the lease, its last change is a use of the cluster.
    """
    import asyncio  # noqa: PLC0415 - as in recover

    while True:
        with suppress(OSError):
            os.utime(job_folder.path(job, "lock"))
        await asyncio.sleep(ALIVE_EVERY_S)


def recover(job: str) -> Record | None:
    """Returns a job's record, completed if its supervisor is dead; None if there is no record. Raises OSError.

    Of two simultaneous calls, the second waits for the first.
    """
    record = job_folder.read_record(job)
    if record is None or record.has_ended:
        return record
    if is_alive(job) and not is_held(job_folder.path(job, "recovery")):
        return job_folder.read_record(job)  # again: another process may have completed it just now
    import asyncio  # noqa: PLC0415 - importing it takes a quarter of this program's start

    return asyncio.run(complete(job))


async def complete(job: str) -> Record | None:
    """Completes the record of a job whose supervisor is dead. Returns the record. Raises OSError."""
    record = job_folder.read_record(job)
    if record is None or record.has_ended:  # its supervisor may still copy the log
        return record
    with FileLock(job_folder.path(job, "recovery")) as ours, FileLock(job_folder.path(job, "lock")) as care:
        if not ours.take(RECOVERY_TIMEOUT_S) or is_alive(job) or not care.take(LOOK_S):
            return job_folder.read_record(job)
        record = job_folder.read_record(job)
        if record is None or record.has_ended:
            return record
        return await _complete(job, record)


async def _complete(job: str, record: Record) -> Record:
    ended_at = find_last_write(job)
    result = job_log.repair(job)
    await give_back_nodes(record)
    if result is None:
        left = await end_job(record, find_hosts(record))
        error = f"the supervisor on {record.nodes[0].name} was killed"
        if record.nodes[0].name in record.waiting_for:
            error = f"{record.nodes[0].name} was shut down"
        result = JobResult(state="failed", exit_code=1, error=error, left=left)
        writer = job_log.Log(job)
        writer.make_room()
        writer.put(state="failed")
        writer.put(result=result)
        writer.write()
        writer.close()
    record.end(result.state, result.exit_code, result.error, result.left or {}, at=ended_at)
    record.attempts = end_attempt(record, ended_at)
    record.cost_usd = find_cost(record, ended_at)
    launching.clean_up(job)
    for name in ("reserve", "socket"):
        job_folder.remove(job_folder.path(job, name))
    job_folder.write_record(record, lasting=True)
    publish(record)
    return record


def find_last_write(job: str) -> float:
    """Returns when a job's supervisor has last written to its folder: every few seconds while the job runs."""
    paths = [job_folder.path(job, name) for name in ("record.json", "events", "samples")]
    return max(os.path.getmtime(path) for path in paths if os.path.exists(path))


def end_attempt(record: Record, ended_at: float) -> tuple[Attempt, ...]:
    """Returns the attempts of a job that has ended: its result is that of the last attempt, if that was running."""
    if not record.attempts or record.attempts[-1].ended_at is not None:
        return record.attempts
    *others, last = record.attempts
    reason: EndReason = record.state if record.state in ("done", "stopped") else "error"
    ended = replace(
        last,
        ended_at=ended_at,
        exit_code=record.exit_code,
        error=record.error,
        reason=reason,
        cost_usd=cost_of(record.nodes, ended_at - last.started_at),
    )
    return (*others, ended)


def find_hosts(record: Record) -> Sequence[JobHost]:
    """Returns the hosts where processes of a job may still run after its supervisor was killed."""
    if record.state in ("queued", "pending"):
        return ()
    return [host for host in record.nodes if host.name not in record.waiting_for]


async def give_back_nodes(record: Record) -> None:
    """Cancels the allocation of a batch scheduler. If that fails, it ends a minute after the agents."""
    from node.supervisor.allocation import Client  # noqa: PLC0415 - as above

    spec = record.spec
    if spec.scheduler in SCHEDULERS and record.job_number:
        await Client(SCHEDULERS[spec.scheduler], spec.setup).cancel(record.job_number)


async def end_job(record: Record, hosts: Sequence[JobHost]) -> Left:
    """Ends a job's processes on this host, its head, and on `hosts` (see `end_on`)."""
    from node.supervisor import remains  # noqa: PLC0415 - as above

    left, _ = await remains.end_on(record.id, hosts, head=record.nodes[0])
    return left


def publish(record: Record) -> None:
    """Copies the job to a volume, or to S3 if it uses this host's credentials: the user's are no longer available."""
    spec = record.spec
    if spec.output_url is None or not (spec.nodes_credentials or spec.output_url.startswith("/")):
        return
    env = {name: value for name, value in spec.env.items() if value != HIDDEN}
    Copying(spec.id, spec.output_url, env, secrets=None).finish(COPY_S)


def recover_all() -> list[Record]:
    """Returns all jobs' records, the newest first, completed if their supervisors are dead. Raises OSError."""
    records = [recover(record.id) for record in job_folder.read_all()]
    return [record for record in records if record is not None]
