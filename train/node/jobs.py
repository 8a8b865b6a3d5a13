"""The jobs of this cluster, asked for on its head over ssh by the user's machine.

    jobs.py submit [--follow]           the order (supervise.py) comes as one line on stdin
    jobs.py follow ID OFFSET [--no-wait]
    jobs.py list
    jobs.py stop ID [INSTANCE ...]      of these instances it is known that they do not run
Answers are lines of JSON on stdout, and the exit code is 0 whenever there was one:
    submit   {"job": id, "state": "starting" or "queued"}, {"refused": {"id", "name", "state"}} when another job runs
             and order["queue"] is false, or {"error": text}; with --follow it goes on as `follow ID 0`
    follow   the job's log (log.py) from byte OFFSET on as it comes, and {"alive": true} every 2 s, which does not
             count; ends after its last line, the result, or with --no-wait at the present end of the log
    list     {"jobs": [record, ...]}, the newest first; of a record that is damaged its id alone, last
    stop     {"result": {...}} when all of the job has ended; "already": true where it had before: what it had left is
             searched for and ended again then
Whatever is asked: what a killed supervisor has left behind is ended, and its record completed.

Python 3.6 and later, standard library only.
"""

import json
import os
import select
import signal
import sys
import time

import follow
import job_folder
import lock
import processes
import recovery
import submit
import wire

STOP_TIMEOUT_S = 30.0


def answer(message):
    wire.write_all(1, wire.encode(message))


def submit_job(words):
    """Make a job, when the order comes: we are started ahead of it, and it may turn out that there is none."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    said = submit.submit(json.loads(line.decode("utf-8")))
    answer(said)
    if "job" in said and "--follow" in words:
        follow.Follower(said["job"], 0, 1).run(wait=True)


def follow_job(words):
    """Pass a job's log on."""
    if find_job(words[0]) is not None:
        follow.Follower(words[0], int(words[1]), 1).run(wait="--no-wait" not in words)


def list_jobs(_words):
    """All jobs."""
    answer({"jobs": recovery.recover_all() + [{"id": job} for job in job_folder.find_damaged()]})


def stop_job(words):
    """Have a job end, and wait for that."""
    record = find_job(words[0])
    if record is None:
        return
    record = recovery.recover(words[0])
    if record["state"] in job_folder.ENDED:
        answer({"result": result_of(end_left(record, words[1:])), "already": True})
        return
    result = ask_to_stop(words[0])
    if result is None:
        kill_supervisor(record)
        result = result_of(recovery.recover(words[0]))
    answer({"result": result})


def ask_to_stop(job):
    """Have the supervisor end its job; the result, or None when it does not answer."""
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    plug = follow.connect(job)
    while plug is None and recovery.is_alive(job) and time.monotonic() < give_up_at:
        time.sleep(follow.RETRY_S)
        plug = follow.connect(job)
    if plug is not None:
        with plug:
            try:
                plug.sendall(wire.encode({"watch": True, "stop": True}))
                lines = wire.LineBuffer(limit=1 << 20)
                while time.monotonic() < give_up_at:
                    ready, _, _ = select.select([plug], [], [], 1.0)
                    data = plug.recv(1 << 16) if ready else None
                    for line in lines.feed(data or b""):
                        return json.loads(line.decode("utf-8"))["result"]
                    if data == b"":
                        break
            except ConnectionError:
                pass  # it has just ended
    record = job_folder.read_record(job)
    return result_of(record) if record["state"] in job_folder.ENDED else None


def kill_supervisor(record):
    """Kill a supervisor that does not answer, if it is still the one that the record names."""
    known = record["supervisor"]
    if known is not None and processes.start_time(known["pid"]) == known["start_time"]:
        os.kill(known["pid"], signal.SIGKILL)
        while recovery.is_alive(record["id"]):
            time.sleep(follow.RETRY_S)


def end_left(record, gone):
    """End what a job that has ended left on its hosts; its record, in which stands what is left now. Raises OSError.

    gone: the ids of instances that do not run: nothing can be left there. Two that try at the same time do it one after
    the other, the second one only if something is left. The log stays as it is: it says how the job ended.
    """
    if not record["left"]:
        return record
    job = record["id"]
    with lock.Lock(job_folder.path(job, "recovery")) as ours:
        if not ours.take(recovery.RECOVERY_TIMEOUT_S):
            raise OSError("somebody else searches for what job %s left, and does not come to an end" % job)
        record = job_folder.read_record(job) or record
        if record["left"]:
            record["left"] = recovery.end_on(record, [at for at in record["nodes"] if at["instance_id"] not in gone])
            job_folder.write_record(record, lasting=True)
            recovery.publish(record)
    return record


def result_of(record):
    return {key: record[key] for key in ("state", "exit_code", "error", "left")}


def find_job(job):
    """A job's record; None, with an answer, when there is none."""
    record = job_folder.read_record(job) if job_folder.ID.match(job) else None
    if record is None:
        answer({"error": "there is no job %s" % job})
    return record


VERBS = {"submit": submit_job, "follow": follow_job, "list": list_jobs, "stop": stop_job}


def main():
    try:
        VERBS[sys.argv[1]](sys.argv[2:])
    except BrokenPipeError:
        return 1  # nobody is there any more
    except OSError as error:
        answer({"error": job_folder.describe(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
