"""Runs the command `cluster` in a fork of a process that has already imported the program.

Starting Python and importing the program takes half a second of CPU time, and the tests run many hundreds of commands.
The fork has the environment, folder, arguments, output and exit code of a command. `Project.running`,
test_installation.py and `make demo` run the installed command itself.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import botocore.loaders
import botocore.session

IMPORTS = ("boto3", "s3fs", "obstore", "fabric", "rich.live", "rich.table")
SERVICES = ("ec2", "s3", "ssm", "sts", "iam", "service-quotas", "pricing")
STARTED_WITH = dict(os.environ)  # tests change this process's environment, which must not affect imports
DIFFERS = ("PYTHON", "LC_", "LANG")  # variables that Python reads when it starts


class Completed(subprocess.CompletedProcess[str]):
    """A command that has ended. peak_kib: its peak memory, including the modules imported before it began."""

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


class Preloaded:
    """A process that has imported everything; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=STARTED_WITH)
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        self._socket.close()
        self._server.wait()

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
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"+"], [theirs.fileno(), out_fd, err_fd])
        order = {"words": [*words], "cwd": str(cwd), "env": dict(env), "terminal": is_at_terminal}
        ours.sendall(json.dumps(order).encode())
        ours.shutdown(socket.SHUT_WR)
        return Started(words, ours)

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
    """The single instance of this process."""
    return Preloaded()


def may_run(env: Mapping[str, str]) -> bool:
    """Whether a Python started with this environment would behave like the preloaded one."""
    ours, theirs = ({n: v for n, v in e.items() if n.startswith(DIFFERS)} for e in (STARTED_WITH, env))
    return ours == theirs


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def serve(orders: socket.socket) -> list[str] | None:
    """Forks for each order until the other side closes. In the fork that becomes the command, returns its words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        begun, fds, _, _ = socket.recv_fds(orders, 1, 3)
        if not begun:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            return answer(*fds)
        for fd in fds:
            os.close(fd)


def answer(asker_fd: int, out_fd: int, err_fd: int) -> list[str]:
    """Forks again and reports the exit code; returns only in the process that becomes the command."""
    asker = socket.socket(fileno=asker_fd)
    with asker.makefile() as file:
        order: dict[str, Any] = json.load(file)
    ready, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(go)
        os.read(ready, 1)  # ends when the fork leads its session
        asker.sendall(f"{pid}\n".encode())
        _, status, usage = os.wait4(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            asker.sendall(f"{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}\n".encode())
        os._exit(0)
    os.setsid()
    asker.detach()
    os.close(asker_fd)
    os.close(ready)
    os.close(go)
    stdin = os.dup(out_fd) if order["terminal"] else os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((stdin, 0), (out_fd, 1), (err_fd, 2)):
        os.dup2(fd, target)
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    words: list[str] = order["words"]
    return words


def import_program() -> Any:
    """Imports all modules of the commands, and lets botocore load its service models."""
    sys.path[0] = str(Path(sys.executable).parent)  # as for the installed command
    commands: dict[str, tuple[str, str]] = importlib.import_module("cluster.commands").COMMANDS
    for name in (*(place.partition(":")[0] for place, _ in commands.values()), *IMPORTS):
        importlib.import_module(name)
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    session = botocore.session.get_session()
    for service in SERVICES:
        session.create_client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    return importlib.import_module("cluster.main").main


def carry_out(main: Callable[[], object]) -> NoReturn:
    """Runs the program as Python does, but skips the interpreter's clean-up at exit."""
    code: object = 0
    try:
        main()
    except SystemExit as error:
        code = error.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main = import_program()
    gc.freeze()
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        sys.argv = found
        carry_out(main)
