"""Runs programs inside a running host, as its root: for the daemon, the command line and the Python API."""

import subprocess

from ec2_sandbox.hosts.namespaces import ENVIRONMENT

TIMEOUT_S = 30


def words_inside(pid: int, *words: str, **environment: str) -> tuple[str, ...]:
    """Returns the command that runs `words` in all namespaces of a host. pid: the machine's pid of its process 1."""
    namespaces = ("--user", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    variables = {**ENVIRONMENT, "HOME": "/root", **environment}
    clean = ("env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items()))
    return ("nsenter", f"--target={pid}", *namespaces, "--", *clean, *words)


def run_inside(
    pid: int, *words: str, stdin: str = "", timeout_s: float = TIMEOUT_S, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program to its end; after `timeout_s`, it is killed with its children. stdout has both of its outputs.

    The time limit is the host's own timeout(1): without nsenter, nobody would reap the program, and the kernel ends a
    host only when all of its processes are reaped.
    """
    limited = words_inside(pid, "timeout", "--signal=KILL", str(timeout_s), *words, **environment)
    return subprocess.run(
        limited, input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        start_new_session=True,
    )  # fmt: skip
