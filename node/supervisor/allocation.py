"""Requests a job's nodes from a batch scheduler, waits for them, watches them, and releases them.

The head submits a batch script that only holds the nodes (node/engines/scheduler.py).
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from node import job_folder
from node.children import run
from node.engines.scheduler import (
    REACHED_WALLTIME,
    AllocatedNode,
    AllocationState,
    Response,
    Scheduler,
    count_nodes,
    render_clock,
)
from node.protocol import AllocationRequest, JobHost
from node.setup import setup_env

POLL_EVERY_S = 3.0
ANSWER_TIMEOUT_S = 30.0
CANCEL_TIMEOUT_S = 10.0
FAILURES_TO_REPORT = 3  # in a row
NOT_FOUND, TIMED_OUT = 127, 124  # a shell's exit codes
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")
KEPT_GROUPS = ("SGE_", "PBS_")  # prefixes of variables
LOGIN = "printf '\\0login\\0'; env -0"  # after what a profile prints
SCRIPT = "allocation.sh"
ADDRESS = re.compile(r"[0-9.]+")


def keep(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that a scheduler's commands need. Pure."""
    return {name: value for name, value in environ.items() if name in KEPT or name.startswith(KEPT_GROUPS)}


class Client:
    """Runs a scheduler's commands on the head. setup: the digest of [bootstrap] setup, whose exports they get."""

    def __init__(self, scheduler: Scheduler, setup: str | None = None) -> None:
        self.scheduler = scheduler
        env = keep(os.environ)
        self._env = env if setup is None else setup_env.merge(env, setup_env.read(setup))
        self._has_login = False

    async def ask(self, words: Sequence[str], timeout_s: float | None = None) -> Response:
        """Runs a command. The answer also says that it cannot be started, or does not end in time."""
        timeout_s = timeout_s or ANSWER_TIMEOUT_S
        if not self._has_login:
            await self._add_login()
        try:
            code, out, message = await run(words, timeout_s, env=self._env)
        except OSError as error:
            missing = "if a module has it, load that in [bootstrap] setup"
            return Response("", f"{words[0]}: {error.strerror or error}; {missing}", NOT_FOUND)
        if code is None:
            return Response("", f"{words[0]} did not end within {timeout_s:g} s", TIMED_OUT)
        return Response(out.decode("utf-8", "replace"), message.decode("utf-8", "replace"), code)

    async def _add_login(self) -> None:
        """Adds the variables of a login shell: on many sites, only its profile sets PATH and SGE_ROOT."""
        self._has_login = True
        with contextlib.suppress(OSError):
            _, out, _ = await run(("bash", "-lc", LOGIN), ANSWER_TIMEOUT_S, env=self._env)
            entries = out.decode("utf-8", "replace").rpartition("\0login\0")[2].split("\0")
            login = keep(dict(entry.partition("=")[::2] for entry in entries))
            path = ":".join(filter(None, (self._env.get("PATH"), login.get("PATH"))))
            self._env = {**login, **self._env, "PATH": path}

    async def check(self, request: AllocationRequest) -> AllocationRequest:
        """Returns the request, completed with its queue's values. Raises ValueError if the queue does not allow it."""
        scheduler = self.scheduler
        if not scheduler.limits:
            return request
        answer = await self.ask(scheduler.limits)
        if answer.exit_code != 0:
            raise ValueError(f"the queues of {scheduler.title} cannot be read: {answer.error}")
        return scheduler.check(request, scheduler.parse_limits(answer.stdout))

    async def submit(self, script: str) -> str:
        """Submits a script and returns the job number. Raises ValueError if the scheduler refuses it."""
        answer = await self.ask((*self.scheduler.submit, script))
        if answer.exit_code != 0:
            raise ValueError(f"{self.scheduler.title} refused the job: {answer.error}")
        return self.scheduler.parse_job_number(answer.stdout)

    async def find_state(self, number: str, *, is_granted: bool = False) -> AllocationState:
        """Returns a job's state. is_granted: its nodes are known. Raises ValueError without an answer."""
        found = self.scheduler.parse_state(await self.ask(self.scheduler.state_command(number)), number)
        if is_granted and found.state == "running":
            return found
        command = self.scheduler.more_command(number, found)
        if command:
            found = self.scheduler.parse_more(await self.ask(command), found)
        return replace(found, nodes=tuple([await self._find_address(node) for node in found.nodes]))

    async def _find_address(self, node: AllocatedNode) -> AllocatedNode:
        name = node.address or node.name  # PBS and Grid Engine say names alone, and Slurm's NodeAddr may be one
        if ADDRESS.fullmatch(name):
            return node
        answer = await self.ask(("getent", "ahostsv4", name))
        return replace(node, address=(answer.stdout.split() or [node.address])[0])

    async def cancel(self, number: str) -> str | None:
        """Cancels a job. Returns the error, or None if the job has ended or will end."""
        answer = await self.ask((*self.scheduler.cancel, number), CANCEL_TIMEOUT_S)
        if answer.exit_code == 0:
            return None
        if answer.exit_code != TIMED_OUT:  # some schedulers' commands fail for a job that has ended
            with contextlib.suppress(ValueError):
                if (await self.find_state(number, is_granted=True)).state == "ended":
                    return None
        return f"{self.scheduler.title} job {number} could not be cancelled: {answer.error}"


class Allocation:
    """The nodes of one job. number: of a batch job that runs already. message: shows a text to the user."""

    def __init__(self, client: Client, message: Callable[[str], None], number: str = "") -> None:
        self._client, self._message, self._number = client, message, number
        self._title = client.scheduler.title
        self._submitting: asyncio.Task[str] | None = None
        self._walltime_s: int | None = None
        self._granted_at = time.monotonic() if number else None

    async def wait(
        self, request: AllocationRequest, hosts: Sequence[JobHost], note: Callable[[str, str], None]
    ) -> tuple[JobHost, ...]:
        """Requests nodes, and waits until they are assigned. Returns them in the scheduler's order.

        hosts: those that are set up for the job. note(number, reason): receives the job number, and why it is pending;
        "" once it runs. Raises ValueError if the scheduler refuses the request or ends it, OSError.
        """
        path = job_folder.path(request.job, SCRIPT)
        job_folder.write_whole(path, self._client.scheduler.render_script(request).encode())
        self._submitting = asyncio.ensure_future(self._client.submit(path))
        self._number = await asyncio.shield(self._submitting)  # `cancel` needs the number
        note(self._number, "")
        noted = ""
        while (found := await self._ask()).state == "pending":
            if found.reason != noted:
                noted = found.reason
                note(self._number, noted)
            await asyncio.sleep(POLL_EVERY_S)
        if found.state == "ended":
            raise ValueError(self._describe_end(found.reason))
        count = len(found.nodes)
        if count != request.nodes:
            raise ValueError(f"{self._title} assigned {count_nodes(count)}, but the job needs {request.nodes}")
        assigned = match_hosts(found.nodes, hosts)
        self._granted_at, self._walltime_s = time.monotonic(), request.walltime_s
        note(self._number, "")
        return assigned

    async def watch(self) -> tuple[str, bool]:
        """Waits until the scheduler takes the nodes back. Returns why, and whether the walltime was over."""
        while (found := await self._ask()).state == "running":  # noqa: ASYNC110 - the scheduler does not tell
            await asyncio.sleep(POLL_EVERY_S)
        reason = found.reason if found.state == "ended" else "it was put back into the queue"
        limit_s, since = self._walltime_s, self._granted_at
        if found.is_vague and limit_s and since and time.monotonic() > since + limit_s - 2 * POLL_EVERY_S:
            reason = f"{REACHED_WALLTIME} ({render_clock(limit_s)})"
        return self._describe_end(reason), reason.startswith(REACHED_WALLTIME)

    def _describe_end(self, reason: str) -> str:
        return f"{self._title} job {self._number} ended: {reason}"

    async def _ask(self) -> AllocationState:
        """Returns the state. A scheduler that does not answer does not end the job, as it may be restarting."""
        failures = 0
        while True:
            try:
                found = await self._client.find_state(self._number, is_granted=self._granted_at is not None)
            except ValueError as error:
                failures += 1
                if failures == FAILURES_TO_REPORT:
                    self._message(f"{self._title} does not answer: {error}")
                await asyncio.sleep(POLL_EVERY_S)
                continue
            if failures >= FAILURES_TO_REPORT:
                self._message(f"{self._title} answers again")
            return found

    async def cancel(self) -> str | None:
        """Releases the nodes. Waits a limited number of seconds for the scheduler. Returns an error, or None."""
        if self._submitting is None:
            return None
        await asyncio.wait([self._submitting], timeout=CANCEL_TIMEOUT_S)
        if not self._submitting.done() or self._submitting.exception() is not None:
            return None
        return await self._client.cancel(self._submitting.result())


def match_hosts(nodes: Sequence[AllocatedNode], hosts: Sequence[JobHost]) -> tuple[JobHost, ...]:
    """Returns the job's hosts that the scheduler assigned, in its order. Pure. Raises ValueError for other hosts."""
    by_name = {name: host for host in hosts for name in (host.name, host.name.partition(".")[0], host.ip) if name}
    found = []
    for node in nodes:
        names = (node.address, node.name, node.name.partition(".")[0])
        host = next((by_name[name] for name in names if name in by_name), None)
        if host is None:
            known = ", ".join(one.name for one in hosts)
            raise ValueError(
                f"the scheduler assigned {node.name}, which is not one of the hosts that are set up ({known})"
            )
        found.append(host)
    return tuple(found)
