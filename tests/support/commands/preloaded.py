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
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import botocore.loaders
import botocore.session

IMPORTS = ("boto3", "s3fs", "obstore", "fabric", "rich.live", "rich.table")
SERVICES = ("ec2", "s3", "ssm", "sts", "iam", "service-quotas", "pricing")
STARTED_WITH = dict(os.environ)  # tests change this process's environment, which must not affect imports
DIFFERS = ("PYTHON", "LC_", "LANG", "HOME")  # variables that Python or botocore reads when it starts


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
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run does it. terminal: a pty that the command has as stdin, stdout and stderr.

        Raises subprocess.TimeoutExpired.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            order = json.dumps({"words": [*words], "cwd": str(cwd), "env": dict(env), "terminal": terminal is not None})
            fds = (out.fileno(), err.fileno()) if terminal is None else (terminal, terminal)
            socket.send_fds(self._socket, [b"+"], [theirs.fileno(), *fds])
            theirs.close()
            ours.sendall(order.encode())
            ours.shutdown(socket.SHUT_WR)
            with ours.makefile() as answers:
                pid = int(answers.readline())
                ours.settimeout(timeout_s)
                try:
                    code = int(answers.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired([*words], timeout_s, _read(out), _read(err)) from None
            return subprocess.CompletedProcess([*words], code, _read(out), _read(err))


@functools.cache
def preloaded() -> Preloaded:
    """The single instance of this process."""
    return Preloaded()


def may_run(env: Mapping[str, str]) -> bool:
    """Whether a Python that is started with this environment would be like the preloaded one."""
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
        asker.sendall(f"{pid}\n".encode())
        os.close(go)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            asker.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
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
    """Import all modules of the commands, and let botocore load its service models."""
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
