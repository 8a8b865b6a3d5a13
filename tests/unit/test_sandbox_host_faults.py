"""Faults on hosts that run, here with stand-ins for hosts; tests/sandbox/test_host_faults.py has real ones."""

import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox import host_faults
from sandbox.faults import FaultError
from sandbox.host_faults import HostFaults


class SlowHost:
    """Its process 1 takes note of SIGKILL a while after that was sent, as on a busy machine; or never."""

    def __init__(self, *, dies_after_s: float) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        self._killer = threading.Timer(dies_after_s, self.process.kill)

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self._killer.start()

    def close(self) -> None:
        self._killer.cancel()
        self.process.kill()
        self.process.wait()


def kill(host: SlowHost) -> str:
    instance = SimpleNamespace(id="i-1", state="running", impaired=False)
    berth = SimpleNamespace(host=host, boot=SimpleNamespace(done=lambda: True), lost=False)
    fleet: Any = SimpleNamespace(find_berth=lambda _: berth)
    backend: Any = SimpleNamespace(sandbox_instances=lambda: [instance])
    return HostFaults(fleet, backend).acts["kill"]({"instance": "i-1"})


def test_a_host_that_is_said_to_be_dead_is_dead() -> None:
    host = SlowHost(dies_after_s=0.4)
    try:
        assert kill(host) == "the host of i-1 is dead, and its instance stops"
        assert host.process.returncode is not None
    finally:
        host.close()


def test_one_that_does_not_die_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_faults, "END_TIMEOUT_S", 0.2)
    host = SlowHost(dies_after_s=60)
    try:
        with pytest.raises(FaultError, match=r"the host of i-1 was killed, and still lives after 0\.2 s"):
            kill(host)
    finally:
        host.close()
