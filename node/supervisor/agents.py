"""The connections to a job's agents: one ssh for each node, and a child process on the head itself."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from foundation.remote_command import run_program
from node.agent.notice import find_address
from node.programs import CODE_DIR, program_words
from node.protocol import JobHost, Order
from node.setup import process_tree
from node.ssh import SSH_FAILED, ssh_command
from node.supervisor.event_loop import Connection, EventLoop
from node.wire import AgentOrder, Closed, Ping

PING_EVERY_S = 2.0
SAID_BYTES = 4000
LAST_WORDS_S = 5.0  # from the end of ssh's output to its exit
LOOK_AGAIN_S = 0.05


class Agent:
    """A connection to the agent on a host, from its start.

    heard_at: when it last sent a message, by the monotonic clock; None before the first. boot: the host's boot, from
    process_tree.boot. closed: its last message, once it has ended all processes.
    """

    def __init__(
        self, host: JobHost, connection: Connection, child: "subprocess.Popen[bytes]", *, is_here: bool
    ) -> None:
        self.host, self.connection, self.child, self.is_here = host, connection, child, is_here
        self.introduced_at = time.monotonic()
        self.heard_at: float | None = None
        self.boot: str | None = None
        self.closed: Closed | None = None
        self.said = b""  # the end of what ssh has printed
        self.ended_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the connection exists."""
        return self.connection.is_open

    def put(self, message: Any) -> None:
        """Sends a message."""
        self.connection.put(message)

    def explain_end(self) -> str | None:
        """Returns why the connection has ended; None while its program may still say so."""
        code = self.child.poll()
        said = self.said.decode("utf-8", "replace").strip()
        is_late = self.ended_at is not None and time.monotonic() > self.ended_at + LAST_WORDS_S
        if code is None and not is_late:
            return None
        if self.is_here:
            return said.rpartition("\n")[2] or "the program that runs it was killed"
        if code in (0, SSH_FAILED):  # without a message: the agent was killed
            said = said or "the program that runs it there was killed"
        elif code is not None:
            said = said or (f"ssh was killed by signal {-code}" if code < 0 else f"ssh ended with exit code {code}")
        return f"ssh to it failed: {said or 'ssh printed no error'}"


class Agents:
    """The agents of one attempt, by their hosts' names. lose(agent, why): called if one is lost."""

    def __init__(self, loop: EventLoop, lose: Callable[[Agent, str], None]) -> None:
        self._loop, self._lose = loop, lose
        self.by_host: dict[str, Agent] = {}

    def start(self, order: Order, attempt: int) -> None:
        """Starts the agents of a job's hosts. Raises OSError."""
        for number, host in enumerate(order.hosts):
            self._start(order, host, number, attempt)
        self._ping()

    def _start(self, order: Order, host: JobHost, number: int, attempt: int) -> None:
        words, is_here = command(order, host), host == order.hosts[0]
        ours, its = socket.socketpair()
        with its:
            child = process_tree.start(
                words,
                environment(order),
                "/",
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.PIPE,
                outlives=is_here,  # to end its processes
            )
        agent = Agent(host, self._loop.adopt(ours), child, is_here=is_here)
        agent.connection.owner = agent
        self.by_host[host.name] = agent
        place = host.place
        agent.put(
            AgentOrder(
                spec=order.spec,
                number=number,
                host=host.name,
                cwd=order.spec.cwd if place is None else place.cwd,
                tree=order.tree if place is None else place.tree,
                volumes=order.volumes if host.workers else (),
                attempt=attempt,
                metadata=find_address(order.env) if host.instance_id else None,
                authorities=order.authorities,
                patience_s=None if is_here else 2 * order.train.silence_timeout_s,
            )
        )
        assert child.stderr is not None
        source = child.stderr.fileno()

        def listen() -> None:
            data = os.read(source, 1 << 16)
            agent.said = (agent.said + data)[-SAID_BYTES:]
            if not data:
                self._loop.remove(source)

        self._loop.add(source, listen)

    def _ping(self) -> None:
        for agent in self.by_host.values():
            agent.put(Ping())
        self._loop.after("ping", PING_EVERY_S, self._ping)

    def note_end(self, agent: Agent) -> None:
        """Handles the end of a connection."""
        agent.ended_at = time.monotonic()
        if agent.closed is None:
            self._look_at(agent)

    def _look_at(self, agent: Agent) -> None:
        """Reports the loss of an agent, once it is known why."""
        why = agent.explain_end()
        if why is None:
            self._loop.after(f"end of {agent.host.name}", LOOK_AGAIN_S, lambda: self._look_at(agent))
        else:
            self._lose(agent, why)

    def end(self) -> None:
        """Ends the programs that lead to the agents. Those that have not closed lose the supervisor."""
        for agent in self.by_host.values():
            self._loop.drop(agent.connection)
            if agent.child.poll() is None:
                agent.child.kill()
            agent.child.wait()


def command(order: Order, host: JobHost) -> list[str]:
    """Returns the words that start the agent on a host of a job."""
    place = host.place
    python, code_dir = (order.spec.python, CODE_DIR) if place is None else (place.python, place.code_dir)
    words = program_words("agent", python=python, code_dir=code_dir)
    if host == order.hosts[0]:
        return words
    # With the job in its environment, an agent is found and ended even if it is stopped and has no children.
    remote = run_program("env", f"{process_tree.JOB_VARIABLE}={order.spec.id}", *words)
    # ssh waits longer than the supervisor, which reports a silent host better.
    return ssh_command(host, remote, patience=max(3, int(order.train.silence_timeout_s / 2) + 2))


def environment(order: Order) -> Mapping[str, str]:
    """Returns the environment of the agent on the head, and of ssh: this login's."""
    return {**os.environ, process_tree.JOB_VARIABLE: order.spec.id}
