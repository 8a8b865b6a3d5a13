"""Waits for nodes that replace those that a job has lost.

They come from `jobs.py replace`, which the head's own command (the order's replace_command), `cluster up` or `cluster
train` calls.
"""

import asyncio
import subprocess
from typing import IO, TYPE_CHECKING

from node import children, job_folder, wire
from node.protocol import JobHost
from node.setup import process_tree
from node.supervisor import launching
from node.supervisor.attempts import restarts
from node.wire import Refusal, Reply

if TYPE_CHECKING:
    from node.supervisor.supervisor import Supervisor


class Replacement:
    """The wait for the nodes that the job's record names in waiting_for, which it replaces in the job's order."""

    def __init__(self, job: "Supervisor") -> None:
        self._job, self._order, self._message = job, job.order, job.message
        self._child: subprocess.Popen[bytes] | None = None
        self._is_complete = asyncio.Event()

    @property
    def _waiting_for(self) -> tuple[str, ...]:
        return self._job.record.waiting_for

    async def wait(self) -> None:
        """Has the nodes replaced, or tells the user what will replace them. Returns once none is missing."""
        if self._job.record.head_replaces:
            names, them = self._name_missing()
            self._message(f"waiting for {names}: the head replaces {them}")
            self._job.tasks.begin(self._run_command())
        else:
            self._report_missing()
        try:
            await self._is_complete.wait()
        finally:
            if self._waiting_for and self._child is not None:  # the command continues if it has replaced the nodes
                self._child.terminate()

    def _report_missing(self) -> None:
        names, them = self._name_missing()
        self._message(f"waiting for {names}: `cluster up` replaces {them}, or the `cluster train` that is attached")

    def _name_missing(self) -> tuple[str, str]:
        return ", ".join(self._waiting_for), "it" if len(self._waiting_for) == 1 else "them"

    def take(self, hosts: tuple[JobHost, ...]) -> Reply | Refusal:
        """Uses new hosts for nodes that the job waits for."""
        refusal = restarts.find_refused(hosts, self._waiting_for, [host.name for host in self._order.hosts[1:]])
        if refusal is not None:
            return Refusal(refusal)
        restarts.replace_hosts(self._order, hosts)
        for host in hosts:
            self._message(f"{host.name} is there again: {host.instance_id or host.ip}")
        names = {host.name for host in hosts}
        self._job.record.waiting_for = tuple(name for name in self._waiting_for if name not in names)
        self._job.save_soon()
        if not self._waiting_for:
            self._is_complete.set()
        return Reply(waiting_for=self._waiting_for)

    # -- replace_command -----------------------------------------------------------------------------------------

    async def _run_command(self) -> None:
        order = self._order
        env = launching.environment(order)
        del env[process_tree.JOB_VARIABLE]  # it may still have work to do once the job continues
        self._child = process_tree.start([*order.replace_command, order.spec.id], env, job_folder.path(order.spec.id))
        exited = children.watch(self._child)
        assert self._child.stdout is not None
        saying = self._job.tasks.begin(self._report_lines(self._child.stdout))
        code = await exited
        await asyncio.wait([saying], timeout=children.KILLED_S)
        self._child = None
        if self._waiting_for:
            self._job.record.head_replaces = False
            self._job.save()
            self._message(f"the head did not replace {', '.join(self._waiting_for)} (exit code {code})")
            self._report_missing()
            self._job.log.put(state="waiting")  # an attached `cluster train` then replaces them

    async def _report_lines(self, stream: IO[bytes]) -> None:
        """Shows the user what the command prints."""
        output, _ = await children.open_output(stream)
        lines = wire.LineBuffer()  # a line has any length
        while data := await output.read(1 << 16):
            for line in lines.feed(data):
                self._message(_show(line))
        for line in lines.flush():
            self._message(_show(line))


def _show(line: bytes) -> str:
    """Returns a line of output as a terminal would leave it: progress bars redraw with carriage returns."""
    return line.rstrip().rpartition(b"\r")[2].decode("utf-8", "replace")
