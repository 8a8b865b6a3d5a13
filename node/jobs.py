"""Manages the jobs of this cluster: runs on the head for the user's machine, over ssh.

    jobs submit [--follow]           reads the order, one line, from stdin
    jobs check                       reads the order, and only checks it
    jobs follow ID OFFSET [--no-wait] [--start WANTED]   WANTED: protocol.LogWanted
    jobs list
    jobs stop ID [INSTANCE ...]      these instances no longer run
    jobs replace ID                  reads a list of protocol.JobHost, one line, from stdin: hosts that replace those
                                     with the same names, for which the job waits
    jobs message ID TEXT             adds a line to the log of a running job
    jobs stacks ID [RANK [native]]   RANK: of this one alone, with its whole stacks; native: with the frames of C
    jobs samples ID SINCE            SINCE: seconds since the epoch, 0 for all; negative: before now
Answers are lines of JSON on stdout, with the exit code 0:
    submit   wire.Submitted; {"refused": ...} when another job runs and the order does not queue, {"unrunnable":
             why} when the scheduler's queue does not allow it; with --follow it continues as `follow ID 0`
    check    wire.Submitted
    follow   the job's log from byte OFFSET on, and every 2 s {"alive": true}, which is not part of the log; ends after
             the result, or with --no-wait at the current end of the log; with --start, first a protocol.LogStart
    list     {"jobs": [record, ...]}, the newest first, then the ids of damaged records; "unhealthy": {node: {"id":
             instance id, "reasons": [...]}, ...} if there are unhealthy nodes
    stop     wire.StopAnswer when all processes have ended; "already": true if the job had ended before: then the
             processes that it left are ended
    replace  wire.Reply, with the nodes that are still missing; the job continues once there are none
    message  wire.Reply
    stacks   wire.Stacks
    samples  {"samples": true}, then the samples of the job's nodes after SINCE, a samples.Sample each, the newest first
or {"error": text}. Every verb except check also ends the processes of killed supervisors, and completes their records.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from foundation.decode import decode
from foundation.file_lock import FileLock
from node import health, job_folder, wire
from node.engines.schedulers import SCHEDULERS
from node.job.samples import find_since
from node.programs import program_words
from node.protocol import (
    MAX_LINE_BYTES,
    JobHost,
    JobResult,
    LogWanted,
    Order,
    Record,
)
from node.setup import process_tree, setup_env
from node.supervisor import follow, recovery
from node.wire import Message, Replace, Stop, StopAnswer, Submitted, TakeStacks, Watch

SUBMIT_TIMEOUT_S = 60.0  # the longest wait for another submission
STOP_TIMEOUT_S = 30.0
LIST_BYTES = MAX_LINE_BYTES // 2  # of a list of jobs; beyond that, it has no processes of ended ones


def main() -> int:
    """Runs the verb on the command line."""
    verb, *words = sys.argv[1:]
    try:
        VERBS[verb](words)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE.value  # as if killed by it
    except OSError as error:
        answer({"error": job_folder.describe(error)})
    except ValueError as error:
        answer({"error": f"invalid input: {error}"})
    return 0


def answer(message: Any) -> None:
    """Prints a message as one line."""
    wire.write_all(1, wire.encode(message))


def find_job(job: str) -> Record | None:
    """Returns a job's record, completed. If there is none, prints an error as the answer and returns None."""
    record = recovery.recover(job) if job_folder.ID.match(job) else None
    if record is None:
        answer({"error": f"there is no job {job}"})
    return record


# -- submit ------------------------------------------------------------------------------------------------------------


def submit_job(words: Sequence[str]) -> None:
    """Submits the order from stdin. This program starts before the order is known, and may never receive one."""
    with start_supervisor() as supervisor:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        order = decode(line, Order)
        os.makedirs(job_folder.root(), mode=0o700, exist_ok=True)
        reply = submit(order, supervisor)
    answer(reply)
    if reply.job is not None and "--follow" in words:
        follow.Follower(reply.job, 0, 1).run(wait=True)


def check_job(_words: Sequence[str]) -> None:
    """Checks the order on stdin as `submit` does, and answers with the script for the batch scheduler."""
    order = decode(sys.stdin.buffer.readline(), Order)
    unrunnable = find_exceeded(order)
    script = None
    if unrunnable is None and order.spec.scheduler is not None and order.request is not None:
        script = SCHEDULERS[order.spec.scheduler].render_script(order.request)
    answer(Submitted(script=script, unrunnable=unrunnable))


def submit(order: Order, supervisor: "subprocess.Popen[bytes]") -> Submitted:
    """Starts or queues the job of an order; returns the answer. Raises OSError.

    supervisor: one that waits for an order.
    """
    job = order.spec.id
    unrunnable = find_exceeded(order)
    if unrunnable is not None:
        return Submitted(unrunnable=unrunnable)
    with FileLock(os.path.join(job_folder.root(), "submit.lock")) as held:  # so that no other job starts meanwhile
        if not held.take(SUBMIT_TIMEOUT_S):
            return Submitted(error="another submission does not finish")
        known = recovery.recover(job)
        if known is not None:  # our first answer was lost
            return Submitted(job=job, state=known.state)
        records = recovery.recover_all()
        waiting = [one for one in reversed(records) if not one.has_ended and waits_for(order, one)]
        if waiting and not order.train.queue:
            return Submitted(refused=waiting[0])
        job_folder.prune(records)
        newest = max([record.submitted_at for record in records] + [0.0])
        order.before = tuple(one.id for one in waiting)
        is_new = not os.path.exists(job_folder.path(job, "record.json"))
        os.makedirs(job_folder.path(job), mode=0o700, exist_ok=is_new)  # a killed submission may have left it
        try:
            order.submitted_at = order.submitted_at or max(time.time(), newest + 0.001)
            hand_over(order, supervisor)
        except OSError as error:
            shutil.rmtree(job_folder.path(job), ignore_errors=True)
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, job_folder.path(job)) from error
            raise
        return Submitted(job=job, state="queued" if waiting else "starting")


def waits_for(order: Order, other: Record) -> bool:
    """Returns whether a job waits for another one, which has not ended."""
    ours, theirs = order.spec, other.spec
    if ours.beside:  # it waits for no job, but a node has one notebook
        return theirs.beside and not find_places(order.hosts).isdisjoint(find_places(other.nodes))
    is_scheduled = ours.scheduler is not None and theirs.scheduler is not None  # their nodes are chosen by that
    return not theirs.beside and (not is_scheduled or ours.cwd == theirs.cwd)


def find_places(hosts: Sequence[JobHost]) -> set[str]:
    """Returns the names of the hosts on which a job's processes run."""
    return {host.name for host in hosts if host.workers}


def find_exceeded(order: Order) -> str | None:
    """Returns why the batch scheduler's queue does not allow the order; None if it does. Completes the request."""
    if order.spec.scheduler is None or order.request is None:
        return None
    import asyncio  # noqa: PLC0415 - importing it takes a quarter of this program's start

    from node.supervisor.allocation import Client  # noqa: PLC0415 - it imports asyncio

    try:
        client = Client(SCHEDULERS[order.spec.scheduler], order.spec.setup)
        order.request = asyncio.run(client.check(order.request))
    except (ValueError, OSError) as error:
        return str(error)
    return None


def start_supervisor() -> "subprocess.Popen[bytes]":
    """Starts a supervisor, which waits for its order: starting Python and its imports takes longer than the rest.

    At the end of a `with`, it has left this process, or it has not received an order and ends. Raises OSError.
    """
    kept = {key: os.environ[key] for key in ("CLUSTER_SSH",) if key in os.environ}
    return subprocess.Popen(
        program_words("supervise"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**setup_env.of_login(os.environ), **kept},
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )


def hand_over(order: Order, supervisor: "subprocess.Popen[bytes]") -> None:
    """Gives the order to a supervisor. Raises OSError if that does not start the job."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    assert supervisor.stderr is not None
    try:
        wire.write_all(supervisor.stdin.fileno(), wire.encode(order))
    except BrokenPipeError:
        pass  # its output reports why
    reply = supervisor.stdout.readline().decode("utf-8", "replace").strip()
    if reply != "ready":
        complained = supervisor.stderr.read().decode("utf-8", "replace").strip()
        error = reply or complained.rpartition("\n")[2] or "it printed no error"
        raise OSError(f"the supervisor did not start: {error}")


# -- follow, list, stop ------------------------------------------------------------------------------------------------


def follow_job(words: Sequence[str]) -> None:
    """Prints a job's log."""
    if find_job(words[0]) is None:
        return
    follower = follow.Follower(words[0], int(words[1]), 1)
    if "--start" in words:
        follower.begin(decode(words[words.index("--start") + 1].encode(), LogWanted))
    follower.run(wait="--no-wait" not in words)


def list_jobs(_words: Sequence[str]) -> None:
    """Prints all jobs, and the unhealthy nodes."""
    records, size_bytes = recovery.recover_all(), 0
    for record in records:
        if size_bytes > LIST_BYTES and record.has_ended:
            record.roles = ()
        with contextlib.suppress(FileNotFoundError):  # it has just been removed
            size_bytes += os.path.getsize(job_folder.path(record.id, "record.json"))
    found = {"jobs": [*records, *({"id": job} for job in job_folder.find_damaged())]}
    unhealthy = health.read_kept()
    answer({**found, "unhealthy": unhealthy} if unhealthy else found)


def stop_job(words: Sequence[str]) -> None:
    """Stops a job and waits for its end."""
    record = find_job(words[0])
    if record is None:
        return
    if record.has_ended:
        answer(StopAnswer(result=end_left(record, words[1:]).result, already=True))
        return
    if elsewhere := recovery.find_elsewhere(record):
        answer({"error": f"job {record.id} runs on {elsewhere}, which has the same home folder: stop it from there"})
        return
    result = ask_to_stop(words[0])
    if result is None:
        kill_supervisor(record)
        record = recovery.recover(words[0]) or record
        if not record.has_ended:
            answer({"error": f"job {record.id} is still {record.state}: another command is ending it"})
            return
        result = record.result
    answer(StopAnswer(result=result))


def ask_to_stop(job: str) -> JobResult | None:
    """Asks the supervisor to end its job. Returns the result, or None if the supervisor does not answer."""
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    plug = follow.connect(job)
    while plug is None and recovery.is_alive(job) and time.monotonic() < give_up_at:
        time.sleep(follow.RETRY_S)
        plug = follow.connect(job)
    if plug is not None:
        with plug:
            plug.settimeout(STOP_TIMEOUT_S)
            try:
                plug.sendall(wire.encode(Watch()) + wire.encode(Stop()))
                while plug.recv(1 << 16):  # until the job's end
                    pass
            except OSError:
                pass  # the supervisor has just ended, or is stopped
    record = job_folder.read_record(job)
    return record.result if record is not None and record.has_ended else None


def kill_supervisor(record: Record) -> None:
    """Kills a supervisor that does not answer, unless its pid now belongs to another process."""
    known = record.supervisor
    if known is not None and process_tree.start_time(known.pid) == known.start_time:
        os.kill(known.pid, signal.SIGKILL)
        while recovery.is_alive(record.id):
            time.sleep(follow.RETRY_S)


def end_left(record: Record, gone: Sequence[str]) -> Record:
    """Ends the processes that an ended job left on its hosts. Returns its record, with those that remain.

    gone: the ids of instances that no longer run, where no process can remain. The log stays unchanged: it records how
    the job ended. Raises OSError.
    """
    if record.left:
        import asyncio  # noqa: PLC0415 - as above

        hosts = [host for host in record.nodes if host.instance_id not in gone]
        record.left = asyncio.run(recovery.end_job(record, hosts))
        job_folder.write_record(record, lasting=True)
        recovery.publish(record)
    return record


# -- replace, message, stacks ------------------------------------------------------------------------------------------


def replace_nodes(words: Sequence[str]) -> None:
    """Passes new hosts to a job that waits for them."""
    ask_supervisor(words[0], Replace(decode(sys.stdin.buffer.readline(), tuple[JobHost, ...])))


def add_message(words: Sequence[str]) -> None:
    """Adds a line to the log of a running job."""
    ask_supervisor(words[0], Message(words[1]))


def take_stacks(words: Sequence[str]) -> None:
    """Prints where the processes of a running job are."""
    rank = int(words[1]) if len(words) > 1 else None
    ask_supervisor(words[0], TakeStacks(rank, native=words[2:] == ["native"]))


def ask_supervisor(job: str, message: Replace | Message | TakeStacks) -> None:
    """Sends a message to a job's supervisor and prints its answer; an error if there is none."""
    record = find_job(job)
    if record is None:
        return
    if record.has_ended:
        answer({"error": f"job {job} has ended"})
        return
    plug, line = follow.connect(job), b""
    if plug is not None:
        with plug, contextlib.suppress(OSError):  # the supervisor has just ended, or is stopped
            plug.settimeout(STOP_TIMEOUT_S)
            plug.sendall(wire.encode(message))
            line = plug.makefile("rb").readline()
    if line.endswith(b"\n"):
        wire.write_all(1, line)
    else:
        answer({"error": f"the supervisor of job {job} does not answer"})


def list_samples(words: Sequence[str]) -> None:
    """Prints the samples of a job's nodes."""
    job, since = words
    if find_job(job) is None:
        return
    answer({"samples": True})
    if os.path.exists(job_folder.path(job, "samples")):  # not in the first seconds of a job
        for line in find_since(job, float(since) + (time.time() if float(since) < 0 else 0.0)):
            wire.write_all(1, line)


VERBS = {
    "submit": submit_job,
    "check": check_job,
    "follow": follow_job,
    "list": list_jobs,
    "stop": stop_job,
    "replace": replace_nodes,
    "message": add_message,
    "samples": list_samples,
    "stacks": take_stacks,
}
