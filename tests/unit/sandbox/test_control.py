import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox import control
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.errors import NotFoundError, SandboxError
from ec2_sandbox.hosts import hosts
from ec2_sandbox.paths import find_processes, paths_of, read_arguments
from foundation.progress import silent


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SandboxError, match="needs Linux, and this is darwin"):
        control.start(tmp_path, FolderSettings(), report=silent)


def test_other_users_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["/here/cluster", "-c", "my file.toml", "up"])
    with pytest.raises(SandboxError, match="must be root") as caught:
        control.start(tmp_path, FolderSettings(), report=silent)
    assert caught.value.hint == "sudo -E /here/cluster -c 'my file.toml' up"


def test_missing_commands_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts, "SBIN", ())
    for name in hosts.COMMANDS:
        if name not in ("sshd", "mkfs.ext4"):
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"needs sshd, mkfs\.ext4, which this machine does not have") as caught:
        hosts.check_machine()
    assert caught.value.hint == "ec2-sandbox setup"


def test_a_daemon_that_ended_by_itself_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ec2_sandbox.paths.STATE_ROOT", tmp_path / "sandboxes")
    log = paths_of(tmp_path).daemon_log
    log.parent.mkdir(parents=True)
    log.write_text("starting\n" * 20 + "ModuleNotFoundError: No module named 'one'\n")
    with pytest.raises(NotFoundError, match=r"has crashed; its log ends with:\n(starting\n){9}ModuleNotFoundError"):
        control.find_required(tmp_path)


def test_a_daemon_that_is_busy_has_not_crashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`start` would remove a crashed sandbox, with everything in it."""
    monkeypatch.setattr("ec2_sandbox.paths.STATE_ROOT", tmp_path / "s")
    monkeypatch.setattr("ec2_sandbox.paths.CONTROL_TIMEOUT_S", -4.9)
    path = paths_of(tmp_path).control_socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        for _ in range(2):  # it waits in the queue; then the queue is full
            with pytest.raises(SandboxError, match="runs, but does not answer"):
                control.find_running(tmp_path)


def test_processes_are_found_by_a_whole_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[subprocess.Popen[Any]] = [
        subprocess.Popen(("sh", "-c", "read _", argument), stdin=subprocess.PIPE)
        for argument in ("ec2-sandbox:0000test", "ec2-sandbox:0000test:i-1", "ec2-sandbox:0000test2",
                         "tail ec2-sandbox:0000test")
    ]  # fmt: skip
    try:
        assert set(find_processes("ec2-sandbox:0000test")) == {marked[0].pid, marked[1].pid}
    finally:
        for process in marked:
            process.kill()
            process.communicate()
    assert read_arguments(marked[0].pid) == []
