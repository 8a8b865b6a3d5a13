"""Runs one job from the head, in a session of its own: whoever started it may go. jobs.py starts it.

The order comes as one line on stdin, after which nothing is read:
    {"job": id, "name", "python", "launcher": "ssh", "local" or "mpi", "workers", "servers", "kv_store",
     "start_timeout_s", "silence_timeout_s", "stall_timeout": "auto", "none" or seconds, "max_duration_s": or null,
     "hosts": [{"name", "ip", "instance_id"}, ...], the head first, "hostfile": ["10.0.0.4", ...],
     "command": [...], "cwd", "env": {...}, "env_server": {...}, "env_worker": {...}, "secrets": {...},
     "hidden": {"env": [names of variables whose values the record does not tell], "env_server", "env_worker"},
     "nodes_credentials": true for secrets that are this instance's own, "gpus_per_worker": [[0, 1], ...] or [],
     "setup": digest of the set-up commands whose exports the processes get, or null, "job_setup": [commands],
     "sync_dst_dir": path or null, "open_files": number or "auto", "p3", "library", "code", "project", "owner",
     "results_url": "s3://bucket/prefix/" or null,
     "data_check": {"url": "s3://bucket/data/", "needed": true to fail where a node cannot read it} or null,
     "before": [ids of the jobs whose end it has to wait for]}
stdout gets "ready" once the job is on its way (record, lock and socket are there), or one line that says why it is not.
SIGTERM and SIGINT stop the job.

What launch.py lacks is here: one process that fails ends the job, everywhere; the exit code is that process's; and at
the end nothing is left on any host. A job without servers is one worker, without launch.py: that would start a
scheduler, which waits for ever for a worker that needs none.

Python 3.6 and later, standard library only.
"""

import json
import os
import signal
import sys

import job_folder
import lock
import processes
import role_env
import supervisor

LOCK_TIMEOUT_S = 5.0


def main():
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    leave()
    held = lock.Lock(job_folder.path(order["job"], "lock"))
    has_it = held.take(LOCK_TIMEOUT_S)
    record = job_folder.read_record(order["job"])  # now nobody else writes it
    if not has_it or record is None or record["state"] in job_folder.ENDED:
        sys.exit("%s: somebody else has this job, or has ended it" % order["job"])
    role_env.raise_open_files("auto")  # two for each process of the job
    record["supervisor"] = {"pid": os.getpid(), "start_time": processes.start_time(os.getpid())}
    try:
        job = supervisor.Supervisor(order, record)
        job.log.reserve()
        job.save(lasting=True)
    except OSError as error:  # such as a full disk, which takes no complaint either
        sys.stdout.write(job_folder.describe(error) + "\n")
        return 1
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    job.run()
    return 0


def leave():
    """Go on as a process that belongs to nobody: no session, no terminal, no parent that passes signals on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")


if __name__ == "__main__":
    sys.exit(main())
