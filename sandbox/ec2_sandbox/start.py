"""Writes the files that a sandbox's daemon reads, and starts it."""

import os
import secrets
import string
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from msgspec.json import encode

from ec2_sandbox.config import FolderSettings
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.paths import (
    SandboxPaths,
    Settings,
    choose_ranges,
    describe_taken,
    find_daemon,
    read_log_end,
    remove_all,
)
from ec2_sandbox.sudo import find_caller

START_TIMEOUT_S = 60.0
POLL_S = 0.05


def prepare(paths: SandboxPaths, project_dir: Path, config: FolderSettings, *, owner: int | None) -> None:
    """Writes the daemon's settings, with new credentials. Raises SandboxError if no address range is free."""
    ranges = choose_ranges(describe_taken(), seed=int(paths.id, 16))
    paths.state_dir.mkdir(mode=0o700)
    _give_to_caller(paths.state_dir)
    paths.hosts_dir.mkdir()
    paths.packages_dir.mkdir()
    paths.objects_dir.mkdir(mode=0o700)
    letters = string.ascii_uppercase + "234567"
    settings = Settings(
        project_dir=str(project_dir.resolve()), private=str(ranges.private), public=str(ranges.public),
        config=config, owner=owner,
        access_key_id="AKIA" + "".join(secrets.choice(letters) for _ in range(16)),
        secret_access_key=secrets.token_urlsafe(30),
    )  # fmt: skip
    paths.settings_file.touch(mode=0o600)
    paths.settings_file.write_bytes(encode(settings))
    paths.aws_dir.mkdir()
    for path in (paths.aws_dir / "config", paths.aws_dir / "credentials"):
        path.touch()
    for path in (paths.settings_file, paths.aws_dir, *paths.aws_dir.iterdir()):
        _give_to_caller(path)


def launch(paths: SandboxPaths) -> None:
    """Starts the daemon and waits until it serves. Raises SandboxError with the end of its log."""
    words = (sys.executable, "-m", "ec2_sandbox.daemon", paths.mark, str(paths.state_dir))
    with paths.daemon_log.open("ab") as log:
        daemon = start_daemon(words, log, _clean_environment(paths))
    deadline = time.monotonic() + START_TIMEOUT_S
    while find_daemon(paths) is None:
        code = daemon.poll()
        if code is not None or time.monotonic() > deadline:
            message = read_log_end(paths)
            remove_all(paths)
            what = f"ended with code {code}" if code is not None else f"did not answer within {START_TIMEOUT_S:.0f} s"
            raise SandboxError(f"The sandbox could not be started: its daemon {what}.\n{message}".rstrip())
        time.sleep(POLL_S)
    _give_to_caller(paths.control_socket)
    daemon.returncode = 0  # it outlives this process, and Popen must not warn about that


def start_daemon(words: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts the daemon in a session of its own."""
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, env=env
    )


def _clean_environment(paths: SandboxPaths) -> dict[str, str]:
    """Returns the daemon's environment. Of the user's variables, it has only the paths of programs and modules."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    if find_caller() is not None:
        kept["PYTHONDONTWRITEBYTECODE"] = "1"  # they would be root's files in the user's folders
    return {**kept, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "TMPDIR": str(paths.objects_dir),
            # So that freed memory goes back to the kernel, and threads share theirs.
            "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}  # fmt: skip


def _give_to_caller(path: Path) -> None:
    """Makes the user who called sudo the owner of a file."""
    if caller := find_caller():
        os.chown(path, caller.uid, -1)
