"""Runs programs inside a running host, as its root: for the daemon, the command line and the Python API."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ec2_sandbox.hosts.files import PATH

TIMEOUT_S = 30
POLL_S = 0.01


def words_inside(pid: int, *words: str, **environment: str) -> tuple[str, ...]:
    """Returns the command that runs `words` in all namespaces of a host. pid: the machine's pid of its process 1."""
    namespaces = ("--user", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    variables = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **environment}
    clean = ("env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items()))
    return ("nsenter", f"--target={pid}", *namespaces, "--", *clean, *words)


def start_inside(pid: int, words: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, with pipes. pid: the machine's pid of the host's process 1."""
    return subprocess.Popen(
        words_inside(pid, "setsid", *words, **environment),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def read_inside(pid: int, words: Sequence[str], stdin: str = "") -> str:
    """Runs a program to its end, and returns its output, without characters that are not UTF-8.

    Raises subprocess.CalledProcessError with the output, or subprocess.TimeoutExpired after TIMEOUT_S.
    """
    process = start_inside(pid, words)
    try:
        output, _ = process.communicate(stdin.encode(), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill_inside(process)
        process.communicate()
        raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, words[0], output)
    return output.decode(errors="replace")


def kill_inside(process: subprocess.Popen[bytes]) -> None:
    """Kills a program that `start_inside` has started, with its children.

    nsenter itself must stay, because only a parent can reap it, and the kernel ends a host only when all are reaped.
    """
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        try:
            found = [int(child) for child in children.read_text().split()]
        except FileNotFoundError:  # it has ended
            return
        for child in found:
            try:
                # Until it has a session of its own, its group is nsenter's.
                (os.killpg if os.getpgid(child) == child else os.kill)(child, signal.SIGKILL)
            except ProcessLookupError:  # it has ended
                continue
        if found:
            return
        time.sleep(POLL_S)  # nsenter has not started the program yet
