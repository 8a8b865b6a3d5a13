"""Stopped processes are found. test_stalls.py has what follows from them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node.setup import process_tree


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_stopped_processes_are_found_but_not_those_of_a_debugger(sleeper: "subprocess.Popen[bytes]") -> None:
    def stopped() -> list[int]:
        return [pid for pid, _ in process_tree.describe_use([os.getpid(), sleeper.pid])[2]]

    assert sleeper.pid not in stopped()
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert process_tree.describe_use([os.getpid(), sleeper.pid])[2] == ((sleeper.pid, "sleep 600"),)
    attach = "import ctypes, sys; ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", attach, str(sleeper.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as debugger:
        debugger.stdout.readline()
        held = sleeper.pid not in stopped()
        debugger.kill()
    assert held
