"""Stands in for `ssh` on the head, once for each server and worker.

    ssh_proxy.py -o OPTION HOST -p PORT 'export K=V; ... cd DIR; COMMAND'   as launch.py calls ssh (see call_ssh)
    ssh_proxy.py --role ROLE HOST [{"VARIABLE": "VALUE"}]                   as the supervisor calls it
    ssh_proxy.py --join HOST {"role", "launched", "path"}                   connects to a role.py that waits on HOST
    ssh_proxy.py --mpi HOST ORTED...                                        as mpirun calls ssh

It runs the real ssh, with pinned host keys and the cluster's own key, starts role.py on the node, and passes messages
between role.py and the supervisor. These include the order, so that command lines contain no secrets.
"""

import getopt
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Optional

from foundation.decode import decode
from foundation.remote_command import Quoted, RemoteCommand, run_program
from node import wire
from node.programs import CODE_DIR, program_words
from node.protocol import JobHost
from node.setup import process_tree
from node.wire import Command, Message

EXPORT = re.compile(r"export (DMLC_[A-Z_]+)=([^;]*);")
EXIT = b'{"exit": '  # the beginning of wire.encode's message of a process's end
PING_EVERY_S = 2.0
PENDING_BYTES = 1 << 17
SAID_BYTES = 4000
LAST_WORDS_S = 5.0  # from the end of ssh's output to its exit
SSH_FAILED = 255
# OpenSSH's defaults without post-quantum key exchange: that takes 80 ms of CPU on either side of each connection, to
# protect a job's output and short-lived credentials for decades. (paramiko, on the user's machine, lacks it, too.)
KEY_EXCHANGES = "-sntrup*,mlkem*"
KNOWN_HOSTS = ("known_hosts", "known_hosts_of_others")  # those of the cluster's nodes, and of other hosts


def main() -> int:
    """Runs the program with this process's arguments."""
    try:
        return run(sys.argv[1:])
    except ConnectionError:
        return 1  # the supervisor has ended


def run(arguments: Sequence[str]) -> int:
    """Runs the program with these arguments. Returns the exit code. Raises ConnectionError."""
    if arguments[0] == "--mpi":
        command = mpi_command(arguments[1:])
        os.execv(command[0], command)  # noqa: S606 - no shell
    if arguments[0] == "--role":
        return reach(arguments[2], arguments[1], decode((arguments[3:] or ["{}"])[0].encode(), dict[str, str]))
    if arguments[0] == "--join":
        waiting = decode(arguments[2].encode(), Message)
        return reach(arguments[1], waiting.role or "", waiting.launched, ["join", waiting.path or ""])
    return call_ssh(arguments)


def call_ssh(arguments: Sequence[str]) -> int:
    """Carries out launch.py's `ssh` with these arguments. Returns its exit code. Raises ConnectionError.

    Threads of launch.py call this: starting a Python for each process of the job would take as long as ssh itself.
    """
    host, port, program = parse_arguments(arguments)
    launched = dict(EXPORT.findall(program))
    return reach(host, launched["DMLC_ROLE"], launched, port=port)


def find_host(address: str) -> JobHost:
    """Returns the job's host with this address, from the environment that launching.py creates."""
    hosts = decode(os.environ["CLUSTER_HOSTS"].encode(), tuple[JobHost, ...])
    return next((host for host in hosts if host.ip == address), JobHost(name=address, ip=address))


def reach(
    address: str, role: str, launched: Optional[Mapping[str, str]] = None, words: Sequence[str] = (), port: str = "22"
) -> int:
    """Runs role.py with `words` as arguments on a host until it or the supervisor ends. Returns the exit code.

    Raises ConnectionError.
    """
    host = find_host(address)
    place = host.place
    python, code_dir = (sys.executable, CODE_DIR) if place is None else (place.python, place.code_dir)
    # With the job in its environment, role.py is found and ended even if it is stopped and no longer has a child.
    job = f"{process_tree.JOB_VARIABLE}={os.environ[process_tree.JOB_VARIABLE]}"
    program = program_words("role", *words, python=python, code_dir=code_dir)
    ssh = subprocess.Popen(
        ssh_command(host, run_program("env", job, *program), port),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        preexec_fn=process_tree.die_with_parent,
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as supervisor:
            supervisor.connect(os.environ["CLUSTER_SOCKET"])
            proxy = Proxy(ssh, supervisor.fileno())
            proxy.up.put(Message(role=role, host=address, launched=dict(launched or {}), by=os.getpid()))
            return proxy.run()
    finally:
        ssh.kill()
        ssh.wait()


class Proxy:
    """Passes bytes between the real ssh and the supervisor until one of them ends, without blocking either."""

    def __init__(self, ssh: "subprocess.Popen[bytes]", supervisor: int) -> None:
        assert ssh.stdin is not None
        assert ssh.stdout is not None
        assert ssh.stderr is not None
        self._ssh = ssh
        self._supervisor = supervisor
        self.up = wire.Outbox(supervisor)
        self._down = wire.Outbox(ssh.stdin.fileno())
        self._out, self._err = ssh.stdout.fileno(), [ssh.stderr.fileno()]  # an empty list once stderr has ended
        self._lines = wire.LineBuffer(limit=1 << 20)
        self._said = b""
        self._pinged_at: Optional[float] = None  # None before the order is sent

    def run(self) -> int:
        """Runs until one side ends. Returns 0 if the node has reported the process's end, else ssh's exit code or 1."""
        told = False
        while True:
            out = [self._out] if len(self.up.pending) < PENDING_BYTES else []
            ready = self._wait([self._supervisor, *out, *self._err])
            if self._supervisor in ready:
                data = wire.read_now(self._supervisor)
                if data == b"":
                    return 1  # ssh and the role end with this process
                self._down.pass_on(data or b"")
                self._pinged_at = self._pinged_at or time.monotonic()
            self._listen(ready)
            if self._out in ready:
                data = os.read(self._out, 1 << 16)
                lines = self._lines.feed(data)
                told = told or any(line.startswith(EXIT) for line in lines)
                self.up.pass_on(b"".join(line + b"\n" for line in lines))
                if not data:
                    break
            if self.up.broken:
                return 1
        if not told:
            self.up.put(Message(lost=self._last_words()))
        while self.up.pending:
            self._wait([])
        return 0 if told else self._ssh.wait() or 1

    def _wait(self, sources: Sequence[int]) -> list[int]:
        """Writes pending output and regular keep-alives. Returns the descriptors that can be read."""
        due = self._pinged_at is not None and time.monotonic() > self._pinged_at + PING_EVERY_S
        if due and not self._down.pending:
            self._down.put(Command(alive=True))
            self._pinged_at = time.monotonic()
        boxes = [box for box in (self.up, self._down) if box.pending and not box.broken]
        poll = select.poll()  # select() fails for descriptors above 1023, and launch.py may have many
        for source in sources:
            poll.register(source, select.POLLIN)
        for box in boxes:
            poll.register(box.descriptor, select.POLLOUT | (select.POLLIN if box.descriptor in sources else 0))
        found = dict(poll.poll(1000 * PING_EVERY_S / 2))
        for box in boxes:
            box.write()
        return [source for source in sources if found.get(source, 0) & ~select.POLLOUT]

    def _listen(self, ready: Sequence[int]) -> None:
        """Reads ssh's own messages, so that its pipe is never full, and stores the last of them."""
        for descriptor in [one for one in self._err if one in ready]:
            data = os.read(descriptor, 1 << 16)
            self._said = (self._said + data)[-SAID_BYTES:]
            if not data:
                self._err = []

    def _last_words(self) -> str:
        """Returns why ssh ended."""
        give_up_at = time.monotonic() + LAST_WORDS_S
        while self._err and time.monotonic() < give_up_at:
            self._listen(self._wait(self._err))
        said = self._said.decode("utf-8", "replace").strip()
        try:
            code = self._ssh.wait(timeout=max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            return said or "ssh printed no error"
        if code < 0:
            return said or f"ssh was killed by signal {-code}"
        if code in (0, SSH_FAILED):  # without a message: role.py was killed, or the process that `role.py join` led to
            return said or "the program that runs it there was killed"
        return said or f"the program that runs it there ended with exit code {code}"


def parse_arguments(arguments: Sequence[str]) -> tuple[str, str, str]:
    """Parses launch.py's arguments for ssh. Returns (host, port, program), with "" for no program."""
    options, (host, *program) = getopt.gnu_getopt(list(arguments), "o:p:")
    return host, dict(options).get("-p", "22"), "".join(program)


def mpi_command(arguments: Sequence[str]) -> list[str]:
    """Returns the real ssh's command for mpirun's arguments, with the job and host in the processes' environment."""
    rest = list(arguments)
    while rest[0].startswith("-"):
        rest.pop(0)
    host = find_host(rest.pop(0))
    env = {process_tree.JOB_VARIABLE: os.environ[process_tree.JOB_VARIABLE], "CLUSTER_HOST": host.name}
    exports = [RemoteCommand("export ", Quoted(f"{key}={env[key]}"), "; ") for key in sorted(env)]
    # A wheel may have installed orted there.
    path = RemoteCommand("PATH=", Quoted(os.path.dirname(sys.executable)), ":$PATH; ")
    # orted checks that its own ssh agent exists, although it does not use it.
    orted = " ".join(rest).replace(os.environ["CLUSTER_MPI_SSH"], "/usr/bin/ssh")
    return ssh_command(host, RemoteCommand(*exports, path, orted))


def ssh_command(host: JobHost, remote: RemoteCommand, port: str = "22", connect_timeout_s: int = 5) -> list[str]:
    """Returns the real ssh's words that run `remote` on a host. A host that is not a node has its own user and port."""
    target = host.ip
    if host.place is not None:
        target, port = f"{host.place.user}@{host.ip}", str(host.place.port)
    folder = os.path.join(os.path.expanduser("~"), ".cluster", "ssh")
    options = {
        "IdentityFile": os.path.join(folder, "id_ed25519"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": " ".join(os.path.join(folder, name) for name in KNOWN_HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "KexAlgorithms": KEY_EXCHANGES,
        "ConnectTimeout": str(connect_timeout_s),
        "ServerAliveInterval": "2",
        "ServerAliveCountMax": os.environ.get("CLUSTER_SSH_PATIENCE", "3"),
        "LogLevel": "ERROR",
    }
    command = [os.environ.get("CLUSTER_SSH", "/usr/bin/ssh"), "-F", "/dev/null", "-T", "-p", port]
    for key, value in options.items():
        command += ["-o", f"{key}={value}"]
    return [*command, target, remote.line()]
