"""Waits for nodes that replace those that a job has lost.

They come from `jobs.py replace`, which the head's own command (the order's replace_command), `cluster up` or `cluster
train` calls. A node that was lost without notice may also return, after a reboot or a network failure.
"""

import os
import subprocess
import time
from collections.abc import Callable

from node import job_folder, wire
from node.protocol import EndReason, JobHost, Order
from node.setup import process_tree
from node.supervisor import launching, recovery
from node.supervisor.attempts import restarts
from node.supervisor.event_loop import EventLoop
from node.wire import Answer

LOOK_EVERY_S = 10.0
CONNECT_S = 2
LOOK_S = 8.0
CLAIM_S = 900.0  # from when a client begins to replace nodes


class Replacement:
    """The nodes that a job waits for. order: the job's, in which it replaces hosts. reason: why they were lost.

    ask: tells an attached `cluster train` to replace them after all.
    """

    def __init__(
        self,
        order: Order,
        waiting_for: tuple[str, ...],
        reason: EndReason | None,
        loop: EventLoop,
        say: Callable[[str], None],
        *,
        ask: Callable[[], None],
    ) -> None:
        self._order, self._loop, self._say, self._ask = order, loop, say, ask
        self.waiting_for = waiting_for
        self.returned: list[JobHost] = []  # the same instances as before, where processes may have been left
        self._may_return = reason not in ("notice", "unhealthy")  # those nodes still answer, but must be replaced
        self._child: subprocess.Popen[bytes] | None = None
        self._search: recovery.Searches | None = None
        self._claimed_until = 0.0

    def start(self) -> None:
        """Starts the replacement of the nodes, or tells the user what will replace them. Raises OSError."""
        names = restarts.join(self.waiting_for)
        if self._order.replace_command:
            self._say(f"waiting for {names}: the head replaces {'it' if self._is_one else 'them'}")
            self._run_command()
        else:
            self._say_who()
        if self._may_return:
            self._loop.after("return", LOOK_EVERY_S, self._look)

    def _say_who(self) -> None:
        names = restarts.join(self.waiting_for)
        them = "it" if self._is_one else "them"
        self._say(f"waiting for {names}: `cluster up` replaces {them}, or the `cluster train` that is attached")

    @property
    def _is_one(self) -> bool:
        return len(self.waiting_for) == 1

    def end(self) -> None:
        """Stops waiting. The command continues if it has replaced the nodes."""
        self._loop.cancel("return")
        if self._search is not None:
            self._search.kill()
            self._search = None
        if self.waiting_for and self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def take(self, hosts: tuple[JobHost, ...]) -> Answer:
        """Uses new hosts for nodes that the job waits for. An empty list means that a client begins to replace them."""
        refusal = restarts.find_refused(hosts, self.waiting_for, [host.name for host in self._order.hosts[1:]])
        if refusal is not None:
            return Answer(error=refusal, waiting_for=self.waiting_for)
        if not hosts and self._child is not None and self._child.poll() is None:
            return Answer(waiting_for=self.waiting_for, by_head=True)
        if not hosts:
            self._claimed_until = time.monotonic() + CLAIM_S
            return Answer(waiting_for=self.waiting_for)
        known = {host.name: host for host in self._order.hosts}
        self.returned += [host for host in hosts if host.instance_id == known[host.name].instance_id]
        restarts.replace_hosts(self._order, hosts)
        for host in hosts:
            self._say(f"{host.name} is there again: {host.instance_id or host.ip}")
        names = {host.name for host in hosts}
        self.waiting_for = tuple(name for name in self.waiting_for if name not in names)
        return Answer(waiting_for=self.waiting_for)

    # -- replace_command -----------------------------------------------------------------------------------------

    def _run_command(self) -> None:
        order = self._order
        env = launching.environment(order)
        del env[process_tree.JOB_VARIABLE]  # it may still have work to do once the job continues
        words = [*order.replace_command, order.spec.id, *self.waiting_for]
        try:
            self._child = process_tree.start(words, env, job_folder.path(order.spec.id))
        except OSError as error:
            self._say(f"{words[0]} cannot be started: {job_folder.describe(error)}")
            self._say_who()
            self._ask()
            return
        stream, lines = self._child.stdout, wire.LineBuffer()
        assert stream is not None
        source = stream.fileno()

        def read() -> None:
            data = os.read(source, 1 << 16)
            for line in lines.feed(data) if data else lines.flush():
                self._say(wire.text(line))
            if not data:
                self._loop.remove(source)
                stream.close()

        self._loop.add(source, read)

    def look_at_child(self) -> None:
        """Handles the end of the command, if it has ended."""
        if self._child is None or self._child.poll() is None:
            return
        code, self._child = self._child.returncode, None
        if self.waiting_for:
            self._say(f"the head did not replace {restarts.join(self.waiting_for)} (exit code {code})")
            self._say_who()
            self._ask()

    # -- nodes that return ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Checks whether lost nodes answer, unless they are being replaced."""
        self._loop.after("return", LOOK_EVERY_S, self._look)
        if self._child is not None or time.monotonic() < self._claimed_until or self._search is not None:
            return
        hosts = [host for host in self._order.hosts if host.name in self.waiting_for]
        spec = self._order.spec
        self._search = recovery.Searches(spec.id, hosts, python=spec.python, connect_timeout_s=CONNECT_S)
        self._loop.after("answers", LOOK_S, self._look_at_answers)

    def _look_at_answers(self) -> None:
        search, self._search = self._search, None
        if search is None:
            return
        clean = search.find_clean()
        back = [host for host in self._order.hosts if host.name in clean and host.name in self.waiting_for]
        if len(back) == len(self.waiting_for) and time.monotonic() >= self._claimed_until and self._child is None:
            self.take(tuple(back))
