"""Requests a job's nodes from a batch scheduler, waits for them, watches them, and releases them.

The head submits a batch script that only holds the nodes (train/engines/scheduler.py). The script ends when it gets no
heartbeat for a minute, so that nodes are not held for a supervisor that was killed.

Each dialogue with the scheduler is a generator: it yields command lines and is sent their answers by `answer`.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from node import job_folder, ssh, wire
from node.children import run
from node.protocol import AllocationRequest, JobHost
from node.setup import process_tree, setup_env
from node.tasks import Tasks
from train.engines.scheduler import (
    REACHED_WALLTIME,
    AllocatedNode,
    AllocationState,
    Answer,
    Scheduler,
    count_nodes,
    render_clock,
    render_heartbeat,
)

POLL_EVERY_S = 3.0
ANSWER_TIMEOUT_S = 30.0
CANCEL_TIMEOUT_S = 10.0
HEARTBEAT_EVERY_S = 10.0
FAILURES_TO_REPORT = 3  # in a row
NOT_FOUND, TIMED_OUT = 127, 124  # a shell's exit codes
KEPT = ("HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")
KEPT_GROUPS = ("SGE_", "PBS_")  # prefixes of variables
# For commands that otherwise only a login shell finds.
PLACES = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin:/opt/pbs/bin:/opt/sge/bin/lx-amd64"
SCRIPT = "allocation.sh"
EC2_NAME = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})")
T = TypeVar("T")
Words = tuple[str, ...]
Questions = Generator[Words, Answer, T]


# -- questions ---------------------------------------------------------------------------------------------------------


def check_request(scheduler: Scheduler, request: AllocationRequest) -> "Questions[AllocationRequest]":
    """Returns the request, completed with its queue's values. Raises ValueError if the queue does not allow it."""
    answer = yield scheduler.limits_command()
    if answer.exit_code != 0:
        raise ValueError(f"the queues of {scheduler.title} cannot be read: {answer.error}")
    queues = scheduler.parse_limits(answer.stdout)
    error = scheduler.check_queue(request, queues)
    found = scheduler.find_queue(request, queues)
    if error is None and found is not None:
        answers = []
        for command in scheduler.detail_commands(request, found):
            answers.append((yield command))  # noqa: PERF401 - a comprehension cannot yield
        found = scheduler.add_details(found, answers)
        error = scheduler.check_limits(request, found)
        if error is None:
            return scheduler.complete(request, found)
    if error is not None:
        raise ValueError(f"{error}; to list them: {scheduler.list_queues}")
    return request


def submit_request(scheduler: Scheduler, script: str) -> "Questions[str]":
    """Submits a script and returns the job number. Raises ValueError if the scheduler refuses it."""
    answer = yield scheduler.submit_command(script)
    if answer.exit_code != 0:
        raise ValueError(f"{scheduler.title} refused the job: {answer.error}")
    return scheduler.parse_job_number(answer.stdout)


def look_at(scheduler: Scheduler, number: str, *, is_granted: bool = False) -> "Questions[AllocationState]":
    """Returns a job's state. is_granted: its nodes are known. Raises ValueError if the scheduler does not answer."""
    found = scheduler.parse_state((yield scheduler.state_command(number)), number)
    if is_granted and found.state == "running":
        return found
    command = scheduler.more_command(number, found)
    if command:
        found = scheduler.parse_more((yield command), found)
    if found.state == "running":
        nodes = []
        for node in found.nodes:
            if node.address or EC2_NAME.match(node.name):
                nodes.append(node)
            else:
                said = yield ("getent", "ahostsv4", node.name)
                nodes.append(replace(node, address=(said.stdout.split() or [""])[0]))
        found = replace(found, nodes=tuple(nodes))
    return found


def give_back(scheduler: Scheduler, number: str) -> "Questions[str | None]":
    """Cancels a job. Returns the error, or None if the job has ended or will end."""
    answer = yield scheduler.cancel_command(number)
    if answer.exit_code == 0:
        return None
    try:  # some schedulers' commands fail for a job that has ended
        found = yield from look_at(scheduler, number, is_granted=True)
    except ValueError:
        found = None
    if found is not None and found.state == "ended":
        return None
    return f"{scheduler.title} job {number} could not be cancelled: {answer.error}"


def match_hosts(nodes: Sequence[AllocatedNode], hosts: Sequence[JobHost]) -> tuple[JobHost, ...]:
    """Returns the job's hosts that the scheduler assigned, in its order. Pure. Raises ValueError for other hosts."""
    by_name = {name: host for host in hosts for name in (host.name, host.name.partition(".")[0], host.ip) if name}
    found = []
    for node in nodes:
        short = node.name.partition(".")[0]
        of_ec2 = EC2_NAME.fullmatch(short)
        address = ".".join(of_ec2.groups()) if of_ec2 is not None else ""
        names = (node.address, node.name, short, address)
        host = next((by_name[name] for name in names if name in by_name), None)
        if host is None:
            known = ", ".join(one.name for one in hosts)
            raise ValueError(
                f"the scheduler assigned {node.name}, which is not one of the hosts that are set up ({known})"
            )
        found.append(host)
    return tuple(found)


# -- answers -----------------------------------------------------------------------------------------------------------


def environment(setup: str | None = None) -> dict[str, str]:
    """Returns the environment of the scheduler's commands, without secrets.

    setup: the digest of [bootstrap] setup, or None.
    """
    env = {key: value for key, value in os.environ.items() if key in KEPT or key.startswith(KEPT_GROUPS)}
    env["PATH"] = ":".join(filter(None, (os.environ.get("PATH", ""), PLACES)))
    if setup is None:
        return env
    changes = setup_env.read(os.path.join(os.path.expanduser("~"), ".cluster"), setup)
    merged: dict[str, str] = setup_env.merge(env, changes)
    return merged


async def answer(questions: "Questions[T]", env: Mapping[str, str], timeout_s: float | None = None) -> T:
    """Runs the commands one after another, and returns the result. Raises what `questions` raises."""
    reply: Any = None
    while True:
        try:
            words = questions.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = await _run(words, env, timeout_s or ANSWER_TIMEOUT_S)


async def _run(words: Words, env: Mapping[str, str], timeout_s: float) -> Answer:
    try:
        code, out, said = await run(words, timeout_s, env=env)
    except OSError as error:
        return _not_started(words, error)
    if code is None:
        return _too_slow(words, timeout_s)
    return Answer(out.decode("utf-8", "replace"), said.decode("utf-8", "replace"), code)


def _not_started(words: Words, error: OSError) -> Answer:
    return Answer("", f"{words[0]}: {error.strerror or error}", NOT_FOUND)


def _too_slow(words: Words, timeout_s: float) -> Answer:
    return Answer("", f"{words[0]} did not end within {timeout_s:g} s", TIMED_OUT)


# -- allocation --------------------------------------------------------------------------------------------------------


class Allocation:
    """The nodes of one job. hosts: those that are set up for it.

    note(number, reason): receives the job number, and why it is pending; "" once it runs. grant(hosts): receives the
    assigned nodes, in the scheduler's order. fail(error): called if the scheduler refuses the request or ends the
    allocation; expire(error): if the walltime ends it. say: shows a message to the user. setup: the digest of
    [bootstrap] setup, or None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        request: AllocationRequest,
        hosts: Sequence[JobHost],
        tasks: Tasks,
        *,
        note: Callable[[str, str], None],
        grant: Callable[[tuple[JobHost, ...]], None],
        fail: Callable[[str], None],
        expire: Callable[[str], None],
        say: Callable[[str], None],
        setup: str | None = None,
    ) -> None:
        self.scheduler, self.request, self._hosts, self._tasks = scheduler, request, hosts, tasks
        self._note, self._grant, self._fail, self._expire, self._say = note, grant, fail, expire, say
        self._env = environment(setup)
        self._running: asyncio.Task[None] | None = None
        self._heartbeat: Heartbeat | None = None
        self.number = ""
        self._noted = ""
        self._granted_at: float | None = None
        self._failures = 0
        self.is_over = False

    async def run(self) -> None:
        """Requests the nodes, and watches them until the scheduler takes them back."""
        try:
            self.request = await answer(check_request(self.scheduler, self.request), self._env)
            path = job_folder.path(self.request.job, SCRIPT)
            write_script(path, self.scheduler.render_script(self.request))
            if self.is_over:
                return
            self.number = await answer(submit_request(self.scheduler, path), self._env)
        except ValueError as error:
            self._end(str(error))
        except OSError as error:
            self._end(job_folder.describe(error))
        if not self.is_over:
            self._note(self.number, "")
        while not self.is_over:
            await self._look()
            await asyncio.sleep(POLL_EVERY_S)

    async def _look(self) -> None:
        is_granted = self._granted_at is not None
        found, error = None, None
        try:
            found = await answer(look_at(self.scheduler, self.number, is_granted=is_granted), self._env)
        except ValueError as failed:
            error = str(failed)
        if self.is_over:
            return
        self._report_failures(error)
        if found is not None and found.state == "pending" and self._granted_at is None:
            if found.reason != self._noted:
                self._noted = found.reason
                self._note(self.number, found.reason)
        elif found is not None and found.state == "running":
            self._take(found.nodes)
        elif found is not None:
            self._note_end(found)

    def _report_failures(self, error: str | None) -> None:
        """Reports a scheduler that does not answer for some time. It does not end the job, as it may be restarting."""
        if error is None:
            if self._failures >= FAILURES_TO_REPORT:
                self._say(f"{self.scheduler.title} answers again")
            self._failures = 0
            return
        self._failures += 1
        if self._failures == FAILURES_TO_REPORT:
            self._say(f"{self.scheduler.title} does not answer: {error}")

    def _take(self, nodes: Sequence[AllocatedNode]) -> None:
        if self._granted_at is not None:
            return
        self._granted_at = time.monotonic()
        count = len(nodes)
        if count != self.request.nodes:
            self._end(f"{self.scheduler.title} assigned {count_nodes(count)}, but the job needs {self.request.nodes}")
            return
        try:
            hosts = match_hosts(nodes, self._hosts)
        except ValueError as error:
            self._end(str(error))
            return
        self._heartbeat = Heartbeat(self.request.job, hosts[0], self._tasks, self._say)
        self._note(self.number, "")
        self._grant(hosts)

    def _note_end(self, found: AllocationState) -> None:
        reason = found.reason
        if found.state == "pending":
            reason = "it was put back into the queue"
        limit_s, since = self.request.walltime_s, self._granted_at
        if found.is_vague and limit_s and since and time.monotonic() > since + limit_s - 2 * POLL_EVERY_S:
            reason = f"{REACHED_WALLTIME} ({render_clock(limit_s)})"
        self.is_over = True
        end = self._expire if reason.startswith(REACHED_WALLTIME) else self._fail
        end(f"{self.scheduler.title} job {self.number} ended: {reason}")

    def start(self) -> None:
        """Starts to request the nodes."""
        self._running = self._tasks.begin(self.run())

    def _end(self, error: str) -> None:
        self.is_over = True
        self._fail(error)

    async def cancel(self) -> str | None:
        """Releases the nodes. Waits a limited number of seconds for the scheduler. Returns an error, or None."""
        self.is_over = True
        if self._running is not None:
            if not self.number:  # it may be submitting
                await asyncio.wait([self._running], timeout=CANCEL_TIMEOUT_S)
            self._running.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        return await cancel(self.scheduler, self.number, self._env) if self.number else None


def write_script(path: str, text: str) -> None:
    """Writes the batch script. Raises OSError."""
    with open(path, "w") as stream:
        stream.write(text)
    os.chmod(path, 0o700)


async def cancel(scheduler: Scheduler, number: str, env: Mapping[str, str]) -> str | None:
    """Cancels the allocation of a job whose supervisor ends or was killed. Returns an error, or None."""
    return await answer(give_back(scheduler, number), env, CANCEL_TIMEOUT_S)


class Heartbeat:
    """Tells the batch script on the first node that the supervisor is alive, over an ssh connection that stays open."""

    def __init__(self, job: str, host: JobHost, tasks: Tasks, say: Callable[[str], None]) -> None:
        self._job, self._host, self._say = job, host, say
        self._ssh: subprocess.Popen[bytes] | None = None
        self._is_reported = False
        self._count = 0
        self._beating = tasks.begin(self._run())

    async def _run(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(HEARTBEAT_EVERY_S)

    def _beat(self) -> None:
        if self._ssh is not None and self._ssh.poll() is not None:
            self._report(self._ssh)
            self._close()
        if self._ssh is None:
            self._ssh = subprocess.Popen(
                ssh.ssh_command(self._host, render_heartbeat(self._job)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                preexec_fn=process_tree.die_with_parent,
            )
        assert self._ssh.stdin is not None
        try:
            self._count += 1
            os.write(self._ssh.stdin.fileno(), b"%d\n" % self._count)
        except OSError:
            pass  # it has just ended, and is started again

    def _report(self, ssh: "subprocess.Popen[bytes]") -> None:
        assert ssh.stderr is not None
        os.set_blocking(ssh.stderr.fileno(), False)
        said = (wire.read_now(ssh.stderr.fileno()) or b"").decode("utf-8", "replace").strip()
        if not self._is_reported:
            self._say(f"connecting to {self._host.name} again, to hold its nodes: {said or 'the connection was lost'}")
        self._is_reported = True

    def _close(self) -> None:
        ssh, self._ssh = self._ssh, None
        if ssh is None:
            return
        ssh.kill()
        ssh.wait()
        for stream in (ssh.stdin, ssh.stderr):
            if stream is not None:
                stream.close()

    def stop(self) -> None:
        """Closes the connection. The script ends when it is cancelled, or a minute later."""
        self._beating.cancel()
        self._close()
