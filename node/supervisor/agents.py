"""The connections to a job's agents: one ssh for each node, and a child process on the head itself."""

import asyncio
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foundation.decode import decode
from foundation.remote_command import run_program
from node import children, wire
from node.agent.notice import find_address
from node.job.stacks import Location
from node.protocol import JobHost, Order
from node.setup import process_tree
from node.ssh import SSH_FAILED, ssh_command, words_on
from node.tasks import Tasks
from node.wire import AgentOrder, Blocked, Booted, Closed, Clues, FromAgent, Ping, Placed, TakeStack

PING_EVERY_S = 2.0
OUTPUT_BYTES = 4000
LAST_WORDS_S = 5.0  # from the end of ssh's output to its exit
LONGEST_MESSAGE = 1 << 20


class HostAgent:
    """A connection to the agent on a host, from its start. child: the agent, or the ssh to it."""

    def __init__(self, host: JobHost, child: "subprocess.Popen[bytes]", *, is_here: bool) -> None:
        self.host, self.is_here = host, is_here
        self.introduced_at = time.monotonic()
        self.received_at: float | None = None  # when it last sent a message, by the monotonic clock
        self.copying_at: float | None = None  # when it last reported that it copies the job's files
        self.boot: str | None = None  # process_tree.boot of the host
        self.blocked: tuple[str, ...] = ()  # ports that it cannot reach
        self.clues = Clues()  # to the first failure there
        self.closed: Closed | None = None  # its last message, once it has ended all processes
        self.is_open = True
        self.is_done = asyncio.Event()  # it has closed, or the connection has ended
        self.output = b""  # the end of what ssh has printed
        self.child, self.ended = child, children.watch(child)
        self._input: asyncio.WriteTransport | None = None
        self._asked: dict[int, asyncio.Future[Location]] = {}  # a user's requests that it has not answered
        self._numbers = itertools.count(1)  # of such requests

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        """Opens its pipes. Returns its output, and what ssh prints."""
        child = self.child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, child.stdin)
        (output, _), (errors, _) = await children.open_output(child.stdout), await children.open_output(child.stderr)
        return output, errors

    def put(self, message: Any) -> None:
        """Sends a message."""
        if self.is_open and self._input is not None and not self._input.is_closing():
            self._input.write(wire.encode(message))

    def ask(self, message: TakeStack) -> "asyncio.Future[Location]":
        """Sends a user's request. Returns the answer, which may never come."""
        message.asked = next(self._numbers)
        answer = self._asked[message.asked] = asyncio.get_running_loop().create_future()
        self.put(message)
        return answer

    def note(self, message: Any) -> None:
        """Keeps what a message reports of the host."""
        self.received_at = time.monotonic()
        if isinstance(message, Ping) and message.is_copying:
            self.copying_at = self.received_at
        elif isinstance(message, Booted):
            self.boot = message.boot
        elif isinstance(message, Blocked):
            self.blocked = message.addresses
        elif isinstance(message, Clues):
            self.clues = message
        elif isinstance(message, Placed) and message.asked in self._asked:
            self._asked.pop(message.asked).set_result(message.location)
        elif isinstance(message, Closed):
            self.closed = message
            self.is_done.set()

    async def explain_end(self, listening: "asyncio.Task[None]") -> str:
        """Returns why the connection has ended, once its program reports it. listening: reads its output."""
        await wait_for([self.ended, listening], LAST_WORDS_S)
        code = self.ended.result() if self.ended.done() else None
        output = self.output.decode("utf-8", "replace").strip()
        if self.is_here:
            return output.rpartition("\n")[2] or "the program that runs it was killed"
        if code in (0, SSH_FAILED):  # without a message: the agent was killed
            output = output or "the program that runs it there was killed"
        elif code is not None:
            output = output or (f"ssh was killed by signal {-code}" if code < 0 else f"ssh ended with exit code {code}")
        advice = "" if self.boot else "; `cluster verify` tries the ports between all nodes"
        return f"ssh to it failed: {output or 'ssh printed no error'}{advice}"


class Agents:
    """The agents of one attempt, by their hosts' names.

    on_message(agent, message): called for each message. lose(agent, why): called if an agent is lost. fail(error): for
    an error in one of these.
    """

    def __init__(
        self,
        on_message: Callable[[HostAgent, Any], None],
        lose: Callable[[HostAgent, str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._on_message, self._lose = on_message, lose
        self._tasks = Tasks(asyncio.get_running_loop(), fail)
        self.by_host: dict[str, HostAgent] = {}

    async def start(self, order: Order, attempt: int) -> None:
        """Starts the agents of a job's hosts. Raises OSError."""
        for number, host in enumerate(order.hosts):
            is_here = host == order.hosts[0]
            child = process_tree.start(
                command(order, host),
                {**os.environ, process_tree.JOB_VARIABLE: order.spec.id},
                "/",
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                outlives=is_here,  # to end its processes
            )
            agent = self.by_host[host.name] = HostAgent(host, child, is_here=is_here)
            output, errors = await agent.open()
            agent.put(order_of(order, host, number, attempt, is_here=is_here))
            self._tasks.begin(self._attend(agent, output, self._tasks.begin(listen(agent, errors))))
        self._tasks.begin(self._ping())

    async def _attend(self, agent: HostAgent, output: asyncio.StreamReader, listening: "asyncio.Task[None]") -> None:
        """Hears an agent until the connection ends."""
        lines = wire.LineBuffer(limit=LONGEST_MESSAGE)
        while data := await output.read(1 << 16):
            for line in lines.feed(data):
                try:
                    message: Any = decode(line, FromAgent)  # type: ignore[arg-type] # a union
                except ValueError:  # from a login shell, or a damaged node
                    continue
                agent.note(message)
                self._tasks.call(partial(self._on_message, agent, message))
        agent.is_open = False
        agent.is_done.set()
        if agent.closed is None:
            self._lose(agent, await agent.explain_end(listening))

    async def _ping(self) -> None:
        while True:
            for agent in self.by_host.values():
                agent.put(Ping())
            await asyncio.sleep(PING_EVERY_S)

    async def end(self) -> None:
        """Ends the programs that lead to the agents. Those that have not closed lose the supervisor."""
        self._tasks.end()
        for agent in self.by_host.values():
            agent.is_open = False
            agent.child.kill()
        await wait_for([agent.ended for agent in self.by_host.values()], children.KILLED_S)


async def wait_for(work: "Sequence[asyncio.Future[Any]]", timeout_s: float) -> None:
    """Waits for all of these, for a limited time."""
    if work:
        await asyncio.wait(work, timeout=timeout_s)


async def listen(agent: HostAgent, errors: asyncio.StreamReader) -> None:
    """Keeps the end of what ssh prints."""
    while data := await errors.read(1 << 16):
        agent.output = (agent.output + data)[-OUTPUT_BYTES:]


def order_of(order: Order, host: JobHost, number: int, attempt: int, *, is_here: bool) -> AgentOrder:
    """Returns the order of the agent on a host."""
    own_host = host.own_host
    return AgentOrder(
        spec=order.spec,
        number=number,
        host=host.name,
        cwd=order.spec.cwd if own_host is None else own_host.cwd,
        tree=order.tree if own_host is None else own_host.tree,
        volumes=order.volumes if host.workers else (),
        attempt=attempt,
        metadata=find_address(order.env) if host.instance_id else None,
        authorities=order.authorities,
        patience_s=None if is_here else 2 * order.train.silence_timeout_s,
    )


def command(order: Order, host: JobHost) -> list[str]:
    """Returns the words that start the agent on a host of a job."""
    words = words_on(host, "agent")
    if host == order.hosts[0]:
        return words
    # With the job in its environment, an agent is found and ended even if it is stopped and has no children.
    remote = run_program("env", f"{process_tree.JOB_VARIABLE}={order.spec.id}", *words)
    # ssh waits longer than the supervisor, which reports a silent host better.
    return ssh_command(host, remote, patience=max(3, int(order.train.silence_timeout_s / 2) + 2))
