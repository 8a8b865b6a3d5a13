"""Ends the processes that a job left on its hosts, and completes the record and log after a killed supervisor."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec.structs import replace

from foundation.decode import decode
from foundation.file_lock import FileLock, is_held
from foundation.remote_command import RemoteCommand, run_program
from node import job_folder, ssh
from node.programs import CODE_DIR, program_words
from node.protocol import Attempt, EndReason, JobHost, JobResult, Left, LeftOnHost, Record
from node.setup import process_tree
from node.supervisor import allocation, job_log, launching
from node.supervisor.publish import Copying
from node.wire import Found
from train.engines.schedulers import SCHEDULERS
from train.job.cost import cost_of, find_cost

RECOVERY_TIMEOUT_S = 30.0
COPY_S = 15.0
LOOK_S = 1.0  # for a process that only checks whether the lock is held
SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2
AGAIN_WITHIN_S = 2.5  # a search that ends so early without an answer was interrupted, and is repeated


def is_alive(job: str) -> bool:
    """Whether a supervisor runs this job, or is about to."""
    record = job_folder.read_record(job)
    ended = record is None or record.has_ended
    return not ended and any(is_held(job_folder.path(job, name)) for name in ("starting", "lock"))


def recover(job: str) -> Record | None:
    """Returns a job's record, completed if its supervisor is dead; None if there is no record. Raises OSError.

    Of two simultaneous calls, the second waits for the first.
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
    result = job_log.repair(job)
    give_back_nodes(record)
    if result is None:
        left = end_job(record, find_hosts(record))
        error = f"the supervisor on {record.nodes[0].name} was killed"
        if record.state == "queued":
            error += ", while the job was queued"
        if record.waiting_for:
            error += f", while the job waited for {' and '.join(record.waiting_for)}"
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
    record.waiting_for, record.attempts = (), end_attempt(record, record.ended_at)
    record.cost_usd = find_cost(record, record.ended_at)
    launching.clean_up(job)
    for name in ("reserve", "record.json.new", "socket"):
        job_folder.remove(job_folder.path(job, name))
    job_folder.write_record(record, lasting=True)
    publish(record)
    return record


def end_attempt(record: Record, ended_at: float) -> tuple[Attempt, ...]:
    """Returns the attempts of a job that has ended: its result is that of the last attempt, if that was running."""
    if not record.attempts or record.attempts[-1].ended_at is not None:
        return record.attempts
    *others, last = record.attempts
    reason: EndReason = "error" if record.state == "failed" else "done" if record.state == "done" else "stopped"
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


def give_back_nodes(record: Record) -> None:
    """Cancels the allocation of a batch scheduler. If that fails, it ends a minute after its last heartbeat."""
    spec = record.spec
    if spec.scheduler in SCHEDULERS and record.job_number:
        allocation.cancel(SCHEDULERS[spec.scheduler], record.job_number, allocation.environment(spec.setup))


def end_job(record: Record, hosts: Sequence[JobHost]) -> Left:
    """Ends a job's processes on this host, its head, and on `hosts` (see `end_on`)."""
    return end_on(record.id, hosts, head=record.nodes[0], python=record.spec.python)


def publish(record: Record) -> None:
    """Copies the job to a volume, or to S3 if it uses this host's credentials: the user's are no longer available."""
    spec = record.spec
    if spec.output_url is None or not (spec.nodes_credentials or spec.output_url.startswith("/")):
        return
    env = {name: value for name, value in spec.env.items() if value != job_folder.HIDDEN}
    Copying(spec.id, spec.output_url, env, secrets=None).finish(COPY_S)


def recover_all() -> list[Record]:
    """Returns all jobs' records, the newest first, completed if their supervisors are dead. Raises OSError."""
    records = [recover(record.id) for record in job_folder.read_all()]
    return [record for record in records if record is not None]


def jobs_lock() -> FileLock:
    """Returns the lock for checking that no job runs and starting one. Raises OSError."""
    os.makedirs(job_folder.root(), mode=0o700, exist_ok=True)
    return FileLock(os.path.join(job_folder.root(), "submit.lock"))


# -- remaining processes -----------------------------------------------------------------------------------------------


def end_on(
    job: str,
    unclean: Sequence[JobHost],
    silent: Collection[str] = (),
    *,
    head: JobHost,
    python: str,
    boots: dict[str, str] | None = None,
) -> Left:
    """Ends a job's processes on this host, its head, and on the hosts of `unclean`, in parallel.

    silent: the names of hosts that will probably not answer. python: that of the nodes. boots: is filled with the boots
    of the hosts that answer, by name.
    Returns the processes that remain, {host name: [(pid, command line), ...]}; pid 0: the host could not be searched.
    """
    searches = []
    for host in unclean:
        timeout_s = SILENT_CONNECT_S if host.name in silent else CONNECT_S
        over_ssh = partial(ssh.ssh_command, host, connect_timeout_s=timeout_s)
        reach = RemoteCommand.here if host == head else over_ssh
        searches.append((host.name, Search(job, reach, host, python=python)))
    left: Left = {}
    _, here = process_tree.end(job)
    if here:
        left[head.name] = [(pid, words) for pid, _, words in here]
    deadline = time.monotonic() + SEARCH_TIMEOUT_S
    for name, search in searches:
        found = search.read(deadline)
        if found:
            left[name] = found
        if boots is not None and search.boot:
            boots[name] = search.boot
    return left


class Searches:
    """Searches of hosts that may not answer, in the background."""

    def __init__(self, job: str, hosts: Sequence[JobHost], *, python: str, connect_timeout_s: int) -> None:
        self._searches = {
            host.name: Search(
                job,
                partial(ssh.ssh_command, host, connect_timeout_s=connect_timeout_s),
                host,
                python=python,
            )
            for host in hosts
        }

    def find_clean(self) -> list[str]:
        """Returns the hosts that have answered, and on which no process of the job is left."""
        now = time.monotonic()
        return [name for name, search in self._searches.items() if not search.read(now)]

    def kill(self) -> None:
        """Ends the searches."""
        for search in self._searches.values():
            search.kill()


class Search:
    """Runs agent.py on a host, which ends the job's processes there; on a node, as root if possible.

    Only root can read the environment of root's processes. It writes no files. reach: returns the words that run a
    command on the host. python: that of the nodes; other hosts have their own.
    """

    def __init__(self, job: str, reach: Callable[[RemoteCommand], list[str]], host: JobHost, *, python: str) -> None:
        place = host.place
        code_dir = CODE_DIR if place is None else place.code_dir
        first, *more = program_words(
            "agent", "end", job, "--boot", python=python if place is None else place.python, code_dir=code_dir
        )
        program = run_program(first, "-B", *more)
        if place is None:  # on a user's own host, sudo would report each attempt to its administrators
            as_root = run_program("sudo", "-n", first, "-B", *more)
            program = RemoteCommand("if sudo -n true 2>/dev/null; then ", as_root, "; else ", program, "; fi")
        self._words = reach(program)
        self.boot = ""  # the host's boot, as reported by it
        self._began_at = time.monotonic()
        self._child = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read(self, deadline: float) -> list[Found]:
        """Returns the processes that it could not end. deadline: by the monotonic clock."""
        found, said = self._wait(deadline)
        if found is None and time.monotonic() < self._began_at + AGAIN_WITHIN_S:
            self._child = self._begin()
            found, said = self._wait(deadline)
        return [(0, "could not be searched: " + (said or "no answer"))] if found is None else found

    def kill(self) -> None:
        """Ends the search, whose answer is not needed."""
        self._child.kill()
        self._child.communicate()

    def _wait(self, deadline: float) -> tuple[list[Found] | None, str]:
        """Waits for the answer. Returns (processes or None, error output)."""
        try:
            out, said = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            out, said = self._child.communicate()
        before, _, last = out.strip().rpartition(b"\n")
        self.boot = before.rpartition(b"\n")[2].decode("ascii", "replace")
        try:
            found = decode(last, LeftOnHost) if self._child.returncode == 0 else None
        except ValueError:
            found = None
        return found, said.decode("utf-8", "replace").strip()
