"""Makes a job: its folder, its record, and a supervisor that nothing but the job's end will end.

Python 3.6 and later, standard library only.
"""

import os
import pwd
import subprocess
import time

import job_folder
import lock
import recovery
import wire

LOCK_TIMEOUT_S = 60.0
# What an order may leave out.
DEFAULTS = {
    "name": "job",
    "queue": False,
    "launcher": "ssh",
    "kv_store": None,
    "start_timeout_s": 60,
    "silence_timeout_s": 15,
    "stall_timeout": "auto",
    "max_duration_s": None,
    "env_server": {},
    "env_worker": {},
    "secrets": {},
    "nodes_credentials": False,
    "gpus_per_worker": [],
    "setup": None,
    "job_setup": [],
    "sync_dst_dir": None,
    "open_files": "auto",
    "p3": False,
    "results_url": None,
}


def submit(given):
    """Start the job of an order, or have it wait for its turn; the answer to whoever asked for it. Raises OSError."""
    order = dict(DEFAULTS, **given)
    order.setdefault("hostfile", [host["ip"] for host in order["hosts"]])
    job = order["job"]
    if not job_folder.ID.match(job):
        return {"error": "%r is no name for a job" % job}
    with recovery.jobs_lock() as held:
        if not held.take(LOCK_TIMEOUT_S):
            return {"error": "another job is being submitted, and does not come to an end"}
        known = recovery.recover(job)
        if known is not None:  # whoever asks again has not heard our answer
            return {"job": job, "state": known["state"]}
        records = recovery.recover_all()
        waiting = [record for record in reversed(records) if record["state"] not in job_folder.ENDED]
        if waiting and not order["queue"]:
            first = waiting[0]
            return {"refused": {"id": first["id"], "name": first["name"], "state": first["state"]}}
        job_folder.prune(records)
        newest = max([record["submitted_at"] for record in records] + [0.0])
        record = job_folder.new_record(order, max(time.time(), newest + 0.001))
        order["before"] = [one["id"] for one in waiting]
        record["state"] = "queued" if waiting else "starting"
        try:
            os.makedirs(job_folder.path(job), mode=0o700)
            with lock.Lock(job_folder.path(job, "starting")) as starting:
                starting.take_now()
                job_folder.write_record(record)
                start_supervisor(order)
        except OSError as error:
            import shutil  # slow to load

            shutil.rmtree(job_folder.path(job), ignore_errors=True)
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, job_folder.path(job)) from error
            raise
        return {"job": job, "state": record["state"]}


def start_supervisor(order):
    """Start supervise.py, where there is systemd in a scope of its own, which a logout leaves alone. Raises OSError."""
    here = os.path.dirname(os.path.abspath(__file__))
    command = [order["python"], "-S", "-E", os.path.join(here, "supervise.py")]
    said = []
    for prefix in scopes(order["job"]) + [[]]:
        outcome = try_start(prefix + command, order)
        if outcome is None:
            return
        said.append(outcome)
    raise OSError("the supervisor did not start: %s" % "; ".join(said))


def scopes(job):
    """The words that make a scope of systemd, where there may be one: a list of none or one."""
    if not os.path.isdir("/run/systemd/system"):
        return []
    user = pwd.getpwuid(os.getuid())
    words = ["sudo", "-n", "systemd-run", "--quiet", "--scope", "--collect", "--unit=cluster-job-" + job]
    words += ["--uid=%d" % user.pw_uid, "--gid=%d" % user.pw_gid]
    return [words + ["--setenv=%s=%s" % pair for pair in sorted(environment().items())]]


def environment():
    """What a supervisor needs of its environment, which sudo may have changed."""
    user = pwd.getpwuid(os.getuid())
    kept = {key: os.environ[key] for key in ("LANG", "CLUSTER_SSH") if key in os.environ}
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    home = os.environ.get("HOME", user.pw_dir)
    return dict(kept, HOME=home, USER=user.pw_name, LOGNAME=user.pw_name, SHELL=user.pw_shell, PATH=path)


def try_start(command, order):
    """Start a supervisor and give it the order; None when it is ready, else what it said instead."""
    complaints = job_folder.path(order["job"], "supervisor.err")
    with open(complaints, "wb") as stream:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
    try:
        process.stdin.write(wire.encode(order))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it says why
    answer = process.stdout.readline().decode("utf-8", "replace").strip()
    process.stdout.close()
    process.wait()
    if answer == "ready":
        return None
    with open(complaints, "rb") as stream:
        said = stream.read().decode("utf-8", "replace").strip()
    return answer or said.rpartition("\n")[2] or "%s said nothing" % os.path.basename(command[0])
