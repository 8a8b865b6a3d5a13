"""Completes the record and the log of a job whose supervisor was killed, and ends what that has left behind."""

import os
import time
from collections.abc import Sequence
from typing import Optional

from foundation.file_lock import FileLock, is_held
from train.job.protocol import JobHost, JobResult, Left, Record
from train.node import job_folder
from train.node.supervisor import end_hosts, job_log, launching
from train.node.supervisor.publish import Copying, Results

RECOVERY_TIMEOUT_S = 30.0
COPY_S = 15.0
LOOK_S = 1.0  # for somebody who only looks whether it is held


def is_alive(job: str) -> bool:
    """Whether a supervisor has this job in its care, or is about to, and has not ended it."""
    record = job_folder.read_record(job)
    ended = record is None or record.has_ended
    return not ended and any(is_held(job_folder.path(job, name)) for name in ("starting", "lock"))


def recover(job: str) -> Optional[Record]:
    """A job's record, completed if its supervisor is dead; None where there is no record. Raises OSError.

    Two that try at the same time do it once, and the second one waits for it.
    """
    record = job_folder.read_record(job)
    if record is None or record.has_ended:
        return record
    with FileLock(job_folder.path(job, "recovery")) as ours, FileLock(job_folder.path(job, "lock")) as care:
        if not ours.take(RECOVERY_TIMEOUT_S) or is_alive(job) or not care.take(LOOK_S):
            return job_folder.read_record(job)
        record = job_folder.read_record(job)
        if record is None or record.has_ended:
            return record
        return _complete(job, record)


def _complete(job: str, record: Record) -> Record:
    result = job_log.mend(job)
    if result is None:
        left = end_on(record, record.nodes if record.state != "queued" else ())
        error = f"the supervisor on {record.nodes[0].name} was killed"
        result = JobResult(state="failed", exit_code=1, error=error, left=left)
        writer = job_log.Log(job)
        writer.make_room()
        writer.put(state="failed")
        writer.put(result=result)
        writer.write()
        writer.close()
    record.state, record.exit_code, record.error = result.state, result.exit_code, result.error
    record.left = result.left or {}
    record.ended_at = time.time()
    launching.clean_up(job)
    for name in ("reserve", "record.json.new", "socket"):
        job_folder.remove(job_folder.path(job, name))
    job_folder.write_record(record, lasting=True)
    publish(record)
    return record


def end_on(record: Record, hosts: Sequence[JobHost]) -> Left:
    """End what is left of a job on these of its hosts; what is left then, as `end_hosts.end_on` tells it."""
    return end_hosts.end_on(record.id, hosts, head=record.nodes[0], python=record.python)


def publish(record: Record) -> None:
    """Have in S3 what is here, if it is there; with credentials that were the user's, not this host's, it cannot be."""
    if record.output_url is None or not record.nodes_credentials:
        return
    env = {name: value for name, value in record.env.items() if value != job_folder.HIDDEN}
    Copying(Results(job=record.id, url=record.output_url, env=env, nodes_credentials=True)).finish(COPY_S)


def recover_all() -> list[Record]:
    """All jobs' records, the newest first, none of them of a dead supervisor. Raises OSError."""
    records = [recover(record.id) for record in job_folder.read_all()]
    return [record for record in records if record is not None]


def jobs_lock() -> FileLock:
    """The lock that whoever looks for a running job to start another one has to have. Raises OSError."""
    os.makedirs(job_folder.root(), mode=0o700, exist_ok=True)
    return FileLock(os.path.join(job_folder.root(), "submit.lock"))
