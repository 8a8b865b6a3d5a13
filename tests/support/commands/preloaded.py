"""Runs the command `cluster`, and the sandbox's daemon, in a fork of a process that has already imported them.

Starting Python and importing the program takes half a second of CPU time, and the daemon's moto takes another one. The
tests run many hundreds of commands and over a hundred daemons. The fork has the environment, folder, arguments, output
and exit code of a command. `Project.running`, test_installation.py and `make demo` run the installed command itself.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import botocore.loaders
import botocore.session

from ec2_sandbox import start

IMPORTS = (
    "boto3.s3.inject", "s3fs", "obstore", "fabric", "rich.live", "rich.table", "packaging.requirements",
    "packaging.tags", "provision.aws.job_keys", "_strptime",
)  # fmt: skip
SERVICES = ("ec2", "s3", "ssm", "sts", "iam", "service-quotas", "pricing")
STARTED_WITH = dict(os.environ)  # tests change this process's environment, which must not affect imports
DIFFERS = ("PYTHON", "LC_", "LANG")  # variables that Python reads when it starts
ADDRESS = "PRELOADED_ADDRESS"  # for the processes of pytest-xdist, which share one server
PADDING = " " * 400  # room for the arguments of a daemon, by which the sandbox finds it


class Completed(subprocess.CompletedProcess[str]):
    """A command that has ended. peak_kib: its peak memory, without the modules imported before it began."""

    peak_kib: int


class Started:
    """A running command, with the part of subprocess.Popen[str] that tests use. It leads its own session.

    stdout: the read end of the pipe that it writes to, if it has one.
    """

    def __init__(self, words: Sequence[str], connection: socket.socket) -> None:
        self.args = [*words]
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self.peak_kib = 0
        self._answers = connection.makefile()
        self._connection = connection
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the command to end; returns its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode, self.peak_kib = map(int, self._answers.readline().split())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Waits for the command to end; returns the rest of stdout.

        Raises subprocess.TimeoutExpired, after which stdout cannot be read.
        """
        assert self.stdout is not None
        rest: list[str] = []
        reader = threading.Thread(target=lambda out: rest.append(out.read()), args=(self.stdout,), daemon=True)
        reader.start()
        reader.join(timeout)
        if not rest:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(timeout)
        return rest[0], None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def kill_session(self) -> None:
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


class Server:
    """A process that has imported everything; it ends with this one. address: of the socket at which it listens."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="preloaded-")
        self.address = f"{self._folder.name}/orders"
        self._alive, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as orders:
            orders.bind(self.address)
            orders.listen()
            fds = [orders.fileno(), theirs.fileno()]
            command = [sys.executable, __file__, *map(str, fds), self.address, PADDING]
            self._process = subprocess.Popen(command, pass_fds=fds, env=STARTED_WITH)
        atexit.register(self.close)

    def close(self) -> None:
        self._alive.close()
        self._process.wait()
        self._folder.cleanup()


class Preloaded:
    """Runs commands in forks of the server at this address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        timeout_s: float,
        terminal: int | None = None,
    ) -> Completed:
        """Runs a command to its end, like subprocess.run. terminal: a pty to use as stdin, stdout and stderr.

        Raises subprocess.TimeoutExpired.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            fds = (out.fileno(), err.fileno()) if terminal is None else (terminal, terminal)
            command = self.start(words, *fds, cwd=cwd, env=env, is_at_terminal=terminal is not None)
            try:
                code = command.wait(timeout_s)
            except subprocess.TimeoutExpired:
                command.kill_session()
                command.wait()
                raise subprocess.TimeoutExpired([*words], timeout_s, _read(out), _read(err)) from None
            done = Completed([*words], code, _read(out), _read(err))
            done.peak_kib = command.peak_kib
            return done

    def start(
        self,
        words: Sequence[str],
        out_fd: int,
        err_fd: int,
        *,
        cwd: Path,
        env: Mapping[str, str],
        is_at_terminal: bool = False,
    ) -> Started:
        """Starts a command. is_at_terminal: out_fd is also its stdin, which is otherwise empty."""
        order = {"words": [*words], "cwd": str(cwd), "env": dict(env), "terminal": is_at_terminal}
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        socket.send_fds(connection, [b"+"], [out_fd, err_fd])
        connection.sendall(json.dumps(order).encode())
        connection.shutdown(socket.SHUT_WR)
        return Started(words, connection)

    @contextlib.contextmanager
    def running(self, words: Sequence[str], err_fd: int, *, cwd: Path, env: Mapping[str, str]) -> Iterator[Started]:
        """Starts a command whose stdout is a pipe; it is killed at the end of the block if it still runs."""
        out, out_fd = os.pipe()
        with open(out) as stdout:
            try:
                command = self.start(words, out_fd, err_fd, cwd=cwd, env=env)
            finally:
                os.close(out_fd)
            command.stdout = stdout
            try:
                yield command
            finally:
                command.kill_session()
                command.wait()


@functools.cache
def preloaded() -> Preloaded:
    """The single instance of this process. Its server is pytest's, or the one that its environment names."""
    return Preloaded(os.environ.get(ADDRESS) or Server().address)


def may_run(env: Mapping[str, str]) -> bool:
    """Whether a Python started with this environment would behave like the preloaded one."""
    ours, theirs = ({n: v for n, v in e.items() if n.startswith(DIFFERS)} for e in (STARTED_WITH, env))
    return ours == theirs


def start_daemon(words: Sequence[str], log: IO[bytes], env: Mapping[str, str], *, address: str | None = None) -> Any:
    """Replaces sandbox.start.start_daemon. Returns a Started, as what `launch` uses of a Popen.

    address: of the preloaded process that forks; by default, the one that belongs to this process.
    """
    forks = preloaded() if address is None else Preloaded(address)
    return forks.start(words, log.fileno(), log.fileno(), cwd=Path("/"), env=env)


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def serve(orders: socket.socket, alive: socket.socket) -> list[str] | None:
    """Forks for each order until the other side closes. In the fork that becomes the program, returns its words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if alive in select.select([orders, alive], [], [])[0]:
            return None
        asker, _ = orders.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            alive.close()
            return answer(asker)
        asker.close()


def answer(asker: socket.socket) -> list[str]:
    """Forks again and reports the exit code; returns only in the process that becomes the program."""
    _, (out_fd, err_fd), _, _ = socket.recv_fds(asker, 1, 2)
    with asker.makefile() as file:
        order: dict[str, Any] = json.load(file)
    ready, go = os.pipe()
    pid = os.fork()
    if pid:
        for fd in (go, out_fd, err_fd):
            os.close(fd)
        os.read(ready, 1)  # ends when the fork leads its session
        with contextlib.suppress(BrokenPipeError):
            asker.sendall(f"{pid}\n".encode())
        _, status, usage = os.wait4(pid, 0)
        peak_kib = usage.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.suppress(BrokenPipeError):
            asker.sendall(f"{os.waitstatus_to_exitcode(status)} {peak_kib}\n".encode())
        os._exit(0)
    os.setsid()
    asker.close()
    os.close(ready)
    os.close(go)
    stdin = os.dup(out_fd) if order["terminal"] else os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((stdin, 0), (out_fd, 1), (err_fd, 2)):
        os.dup2(fd, target)
    for fd in {stdin, out_fd, err_fd}:
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # from TMPDIR
    words: list[str] = order["words"]
    return words


def show_arguments(words: Sequence[str]) -> None:
    """Makes /proc/self/cmdline show these arguments, in the place of those that this process was started with."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    shown = b"".join(word.encode() + b"\0" for word in words)
    assert len(shown) <= end - start, f"{len(shown)} bytes of arguments; PADDING is too short"
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def import_programs() -> None:
    """Imports all modules of the commands and of the daemon, and lets botocore load its service models."""
    sys.path[0] = str(Path(sys.executable).parent)  # as for the installed command
    commands: dict[str, tuple[str, str]] = importlib.import_module("cluster.commands").COMMANDS
    places = (place.partition(":")[0] for place, _ in commands.values())
    for name in (*places, *IMPORTS, "cluster.main", "ec2_sandbox.daemon"):  # last: the daemon leaves out boto3
        importlib.import_module(name)
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    session = botocore.session.get_session()
    for service in SERVICES:
        session.create_client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def carry_out(words: list[str], address: str, moto_settings: Mapping[str, str]) -> NoReturn:
    """Runs a program as Python does, but skips the interpreter's clean-up at exit.

    address: of the preloaded process, which also forks the daemons that a command starts. moto_settings: environment
    variables for moto, which the daemon's modules set when they are imported.
    """
    start.start_daemon = functools.partial(start_daemon, address=address)
    is_daemon = words[1:3] == ["-m", "ec2_sandbox.daemon"]
    if is_daemon:
        show_arguments(words)
        os.environ.update(moto_settings)
    sys.argv = words[2:] if is_daemon else words
    code: object = 0
    try:
        importlib.import_module("ec2_sandbox.daemon" if is_daemon else "cluster.main").main()
    except SystemExit as error:
        code = error.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    orders, alive = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:3])
    import_programs()
    moto_settings = {name: value for name, value in os.environ.items() if name.startswith("MOTO_")}
    gc.freeze()
    found = serve(orders, alive)
    if found is not None:
        carry_out(found, sys.argv[3], moto_settings)
