"""The programs that a supervisor starts on the head: the engine's launcher, and ssh_proxy.py for each host."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from typing import Optional

from msgspec import to_builtins

from foundation.decode import decode
from node import job_folder, ports, wire
from node.programs import launched_words, program_words
from node.protocol import JobHost, Order
from node.setup import process_tree, setup_env
from node.supervisor.event_loop import EventLoop
from node.supervisor.processes import JobProcess
from node.wire import Message
from train.engines import ENGINES
from train.engines.engine import Head, HeadLaunch

Child = subprocess.Popen[bytes]


class Children:
    """The running programs and their output.

    say(process or None, text): receives a line of output. fail(): called if launch.py failed to start a process.
    """

    def __init__(
        self,
        order: Order,
        loop: EventLoop,
        say: Callable[[Optional[JobProcess], str], None],
        fail: Callable[[], None],
    ) -> None:
        self._order, self._loop, self._say, self._fail = order, loop, say, fail
        self._running: list[tuple[Child, Optional[JobProcess]]] = []
        self._launcher: Optional[Child] = None
        self._claim: Optional[socket.socket] = None  # reserves the job's port while the supervisor runs
        self.takes_more = True

    def start_setups(self) -> None:
        """Connects to all hosts for the set-up commands. Raises OSError."""
        for host in self._order.hosts:
            self._watch(self._start_proxy("--role", "setup", host.ip), None)

    def start_launches(self, take_in: Callable[[Child], JobProcess]) -> None:
        """Starts the launches that the engine plans. Raises OSError.

        take_in(child): creates the JobProcess for a launcher's output.
        """
        order = self._order
        engine = ENGINES[order.launcher]
        port = 0
        if engine.ports is not None:
            port, self._claim = ports.claim(engine.ports)
        head = write_files(order, port=port)
        for launch in engine.plan_launches(order, head):
            if isinstance(launch, HeadLaunch):
                env = {**environment(order, os.path.dirname(head.mpi_ssh)), **launch.env}
                self._launcher = process_tree.start(launch.words, env, job_folder.path(order.job))
                self._watch(self._launcher, take_in(self._launcher))
            else:
                words = ("--role", launch.role, launch.address, json.dumps(dict(launch.launched)))
                self._watch(self._start_proxy(*words), None)

    def _start_proxy(self, *words: str) -> Child:
        order = self._order
        command = program_words("ssh_proxy", *words, python=order.python)
        return process_tree.start(
            command, environment(order, os.path.dirname(order.python)), job_folder.path(order.job)
        )

    def _watch(self, child: Child, process: Optional[JobProcess]) -> None:
        assert child.stdout is not None
        stream, lines = child.stdout, wire.LineBuffer()
        source = stream.fileno()
        self._running.append((child, process))

        def read() -> None:
            data = os.read(source, 1 << 16)
            for line in lines.feed(data) if data else lines.flush():
                if line.startswith(wire.WAITING) and child is self._launcher:
                    self.reach(line)
                elif line.startswith(wire.FAILED) and child is self._launcher:
                    self._fail()
                else:
                    self._say(process, wire.text(line))
            if not data:
                self._loop.remove(source)
                stream.close()

        self._loop.add(source, read)

    def reach(self, line: bytes) -> None:
        """Connects to a process that a launcher has started on another host. line: WAITING and its Message."""
        waiting = decode(line[len(wire.WAITING) :], Message)
        host = next((host for host in self._order.hosts if host.name == waiting.host), None)
        if self.takes_more and host is not None:
            self._watch(self._start_proxy("--join", host.ip, json.dumps(to_builtins(waiting))), None)

    def take_ended(self) -> list[tuple[Child, Optional[JobProcess], bool]]:
        """Returns the children that have ended since the last call: (child, process, whether it is the launcher)."""
        ended = [entry for entry in self._running if entry[0].poll() is not None]
        self._running = [entry for entry in self._running if entry not in ended]
        return [(child, process, child is self._launcher) for child, process in ended]

    def kill_launcher(self) -> None:
        """Kills the launcher if it still runs."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()


def environment(order: Order, tools: str) -> dict[str, str]:
    """Returns the environment of these programs: this login's, which mpirun's processes inherit, without secrets."""
    env = setup_env.reach_near(setup_env.of_login(os.environ))
    if "CLUSTER_SSH" in os.environ:
        env["CLUSTER_SSH"] = os.environ["CLUSTER_SSH"]
    env["PATH"] = ":".join([tools, os.path.dirname(order.python), "/usr/local/bin:/usr/bin:/bin"])
    env["CLUSTER_SOCKET"] = job_folder.path(order.job, "socket")
    env["CLUSTER_HOST"] = order.hosts[0].name
    hosts = [JobHost(name=host.name, ip=host.ip, place=host.place) for host in order.hosts]
    env["CLUSTER_HOSTS"] = json.dumps(to_builtins(hosts))
    # ssh waits longer than the supervisor, which reports a silent host better.
    env["CLUSTER_SSH_PATIENCE"] = str(max(3, int(order.silence_timeout_s / 2) + 2))
    env[process_tree.JOB_VARIABLE] = order.job
    return env


def write_files(order: Order, *, port: int = 0) -> Head:
    """Writes the hostfile, and the folder with the stand-ins for ssh. port: the job's port. Raises OSError."""
    folder = job_folder.path(order.job, "bin")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name, arguments in (("ssh", []), ("mpi-ssh", ["--mpi"])):
        place = os.path.join(folder, name)
        words = program_words("ssh_proxy", *arguments, python=order.python)
        with open(place, "w") as stream:
            stream.write('#!/bin/sh\nexec {} "$@"\n'.format(" ".join(words)))
        os.chmod(place, 0o700)
    hostfile = job_folder.path(order.job, "hosts")
    with open(hostfile, "w") as stream:
        stream.write("".join(line + "\n" for line in order.hostfile))
    role_words = tuple(launched_words(ENGINES[order.launcher].variables, python=order.python))
    return Head(hostfile=hostfile, mpi_ssh=os.path.join(folder, "mpi-ssh"), role_words=role_words, port=port)


def clean_up(job: str) -> None:
    """Removes the files of `write_files`."""
    shutil.rmtree(job_folder.path(job, "bin"), ignore_errors=True)
    job_folder.remove(job_folder.path(job, "hosts"))
