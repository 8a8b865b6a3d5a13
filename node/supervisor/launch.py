"""Runs MXNet's own tools/launch.py, unchanged, from the installed wheel.

    launch.py PYTHON PRIVATE_ADDRESS ARGUMENTS...

PYTHON is that of the training environment, which has launch.py; this program's own Python runs it.

It makes two corrections: the scheduler listens on the head's private address, not on that of the host name, and on a
port that is free. It also restores Thread.isAlive, which launch.py calls.
"""

import getopt
import glob
import os
import re
import runpy
import shlex
import site
import socket
import subprocess
import sys
import threading
from typing import Any

from node import job_folder, ports, wire
from node.engines.launch_py import LAUNCHER_FOLDER
from node.setup import process_tree
from node.wire import Launch, NotStarted

PORTS = range(9091, 9999)  # launch.py's
SSH = "ssh "
EXPORT = re.compile(r"export (DMLC_[A-Z_]+)=([^;]*);")
_callers: set[threading.Thread] = set()  # threads that wait for a process


def keep_quiet(failure: Any) -> None:
    """Suppresses launch.py's traceback for a failed ssh: the supervisor reports it better."""
    if not issubclass(failure.exc_type, subprocess.CalledProcessError):
        sys.excepthook(failure.exc_type, failure.exc_value, failure.exc_traceback)


def take_calls() -> None:
    """Intercepts the commands that launch.py runs, each in a thread of its own.

    An `ssh` is carried out by the agent on its host. Each failure is reported to the supervisor: the process may never
    have started.
    """
    run = subprocess.call

    def call(*words: Any, **options: Any) -> int:
        _callers.add(threading.current_thread())
        is_ssh = isinstance(words[0], str) and words[0].startswith(SSH)
        code = call_ssh(words[0]) if is_ssh else run(*words, **options)
        if code != 0:
            ask(NotStarted())
        return code

    subprocess.call = call  # check_call calls it too


def call_ssh(command: str) -> int:
    """Carries out an `ssh ...` of launch.py. Returns 0 once its process has ended, else 1."""
    return 0 if ask(parse_ssh(shlex.split(command)[1:])) else 1


def parse_ssh(arguments: list[str]) -> Launch:
    """Parses launch.py's arguments for ssh: options, the host, and "export K=V; ... cd DIR; COMMAND". Pure."""
    _, (host, *program) = getopt.gnu_getopt(arguments, "o:p:")
    return Launch(host=host, launched=dict(EXPORT.findall("".join(program))))


def ask(message: Any) -> bytes:
    """Sends a message to the supervisor, and waits for its answer. Returns it; b"" if the supervisor has ended."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, job_folder.short_path(os.environ["CLUSTER_SOCKET"]) as path:
            connection.connect(path)
            connection.sendall(wire.encode(message))
            return wire.read_line(connection.fileno())[0]
    except OSError:  # its end, which ends this program too
        return b""


def main() -> None:
    """Runs launch.py with this program's arguments."""
    python, address = sys.argv[1:3]
    take_calls()
    process_tree.raise_open_files("auto")  # one for each process
    threading.excepthook = keep_quiet  # from Python 3.8 on
    if LAUNCHER_FOLDER in os.environ:
        sys.path.insert(0, os.environ[LAUNCHER_FOLDER])
    else:
        prefix = os.path.dirname(os.path.dirname(python))
        for folder in glob.glob(os.path.join(glob.escape(prefix), "lib", "python3*", "site-packages")):
            site.addsitedir(folder)  # its .pth files may name those of the image
    thread: Any = threading.Thread
    thread.isAlive = thread.is_alive
    from dmlc_tracker import tracker  # noqa: PLC0415 - it uses the functions that are replaced above

    port = ports.choose(PORTS)

    class PSTracker(tracker.PSTracker):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            tracker_class.__init__(self, port=port, **given)

    tracker_class = tracker.PSTracker
    tracker.PSTracker = PSTracker
    tracker.get_host_ip = lambda _=None: address
    # The wheel has both packages in the same folder. (Looking for `mxnet` itself would import it.)
    packages = os.path.dirname(os.path.dirname(os.path.abspath(tracker.__file__)))
    path = os.path.join(packages, "mxnet", "tools", "launch.py")
    sys.argv = [path, *sys.argv[3:]]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except FileNotFoundError as error:
        sys.exit(str(error))  # such as mpirun
    for caller in _callers - {threading.current_thread()}:  # launch.py waits only for the scheduler
        caller.join()
