"""Completes the record and the log of a job whose supervisor was killed, and ends what that has left behind.

Python 3.6 and later, standard library only.
"""

import os
import time

import ending
import job_folder
import launching
import lock
import log

RECOVERY_TIMEOUT_S = 30.0
COPY_S = 15.0
LOOK_S = 1.0  # for somebody who only looks whether it is held


def is_alive(job):
    """Whether a supervisor has this job in its care, or is about to, and has not ended it."""
    record = job_folder.read_record(job)
    ended = record is None or record["state"] in job_folder.ENDED
    return not ended and any(lock.is_held(job_folder.path(job, name)) for name in ("starting", "lock"))


def recover(job):
    """A job's record, completed if its supervisor is dead; None where there is no record. Raises OSError.

    Two that try at the same time do it once, and the second one waits for it.
    """
    record = job_folder.read_record(job)
    if record is None or record["state"] in job_folder.ENDED:
        return record
    with lock.Lock(job_folder.path(job, "recovery")) as ours, lock.Lock(job_folder.path(job, "lock")) as care:
        if not ours.take(RECOVERY_TIMEOUT_S) or is_alive(job) or not care.take(LOOK_S):
            return job_folder.read_record(job)
        record = job_folder.read_record(job)
        if record is None or record["state"] in job_folder.ENDED:
            return record
        return _complete(job, record)


def _complete(job, record):
    result = log.mend(job)
    if result is None:
        hosts = record["nodes"]
        left = end_on(record, hosts if record["state"] != "queued" else [])
        error = "the supervisor on %s was killed" % hosts[0]["name"]
        result = {"state": "failed", "exit_code": 1, "error": error, "left": left}
        writer = log.Log(job)
        writer.make_room()
        writer.put({"state": "failed"})
        writer.put({"result": result})
        writer.write()
        writer.close()
    record.update(result, ended_at=time.time())
    launching.clean_up(job)
    for name in ("reserve", "record.json.new", "socket"):
        job_folder.remove(job_folder.path(job, name))
    job_folder.write_record(record, lasting=True)
    publish(record)
    return record


def end_on(record, hosts):
    """End what is left of a job on these of its hosts; what is left then, as `ending.end_on` tells it."""
    order = {"job": record["id"], "python": record["python"], "hosts": record["nodes"]}
    return ending.end_on(order, hosts)


def publish(record):
    """Have in S3 what is here, if it is there; with credentials that were the user's, not this host's, it cannot be."""
    if record["output_url"] is None or not record.get("nodes_credentials"):
        return
    import copying  # slow to load, and rarely needed

    env = {name: value for name, value in record["env"].items() if value != job_folder.HIDDEN}
    order = {"job": record["id"], "env": env, "secrets": {}, "nodes_credentials": True}
    order["results_url"] = job_folder.results_url(record)
    copying.Copying(order).finish(COPY_S)


def recover_all():
    """All jobs' records, the newest first, none of them of a dead supervisor. Raises OSError."""
    records = [recover(record["id"]) for record in job_folder.read_all()]
    return [record for record in records if record is not None]


def jobs_lock():
    """The lock that whoever looks for a running job to start another one has to have. Raises OSError."""
    os.makedirs(job_folder.root(), mode=0o700, exist_ok=True)
    return lock.Lock(os.path.join(job_folder.root(), "submit.lock"))
