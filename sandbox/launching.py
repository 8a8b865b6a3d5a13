"""Starting a sandbox's daemon: what it reads, its process, and the wait until it serves."""

import fcntl
import os
import secrets
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import to_builtins

from provision.errors import ConfigError, SandboxError
from provision.sudo import find_caller
from sandbox.addressing import choose_ranges, describe_taken
from sandbox.config import SandboxConfig
from sandbox.leftovers import remove
from sandbox.marks import STATE_ROOT, Place, read_arguments
from sandbox.policies import PolicyError, parse_policy
from sandbox.settings import AccessKey, DaemonStatus, Settings, read_status, write_json

START_TIMEOUT_S = 60.0
POLL_S = 0.05
LOG_LINES = 10


def find_daemon(place: Place) -> DaemonStatus | None:
    """The daemon's status, if its process lives; a pid that another process has by now does not count."""
    try:
        status = read_status(place.status_file)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return status if place.mark in read_arguments(status.pid) else None


def read_policy(project_dir: Path, config: SandboxConfig) -> str:
    """The text of the IAM policy that [sandbox] policy names, "" when it names none. Raises ConfigError."""
    if not config.policy:
        return ""
    said = f'[sandbox] policy = "{config.policy}"'
    try:
        text = (project_dir / config.policy).read_text()
        parse_policy(text)
    except OSError as error:
        raise ConfigError(f"{said}: {error.strerror or error}", hint='write the file, or policy = ""') from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{said}: it is no text: {error}") from error
    except PolicyError as error:
        raise ConfigError(
            f"{said}: {error}", hint="mend the file; docs/sandbox.md says what the sandbox understands"
        ) from error
    return text


def prepare(place: Place, project_dir: Path, region: str, config: SandboxConfig, *, policy: str) -> None:
    """Writes what the daemon and its clients read: settings and credentials. Raises SandboxError.

    policy: the text of an IAM policy that limits the credentials, or "".
    """
    ranges = choose_ranges(describe_taken(), seed=int(place.id, 16))
    place.hosts_dir.mkdir(parents=True)
    place.objects_dir.mkdir(mode=0o700)
    settings = Settings(
        project_dir=str(project_dir.resolve()),
        region=region,
        private=str(ranges.private),
        public=str(ranges.public),
        sandbox=to_builtins(config),
        policy=policy,
    )
    write_json(place.settings_file, settings)
    write_json(place.credentials_file, _make_access_key(), mode=0o600)
    caller = find_caller()
    if caller is not None:
        os.chown(place.credentials_file, caller.uid, -1)


def _make_access_key() -> AccessKey:
    letters = string.ascii_uppercase + "234567"
    return AccessKey(
        access_key_id="AKIA" + "".join(secrets.choice(letters) for _ in range(16)),
        secret_access_key=secrets.token_urlsafe(30),
    )


def launch(place: Place) -> None:
    """Starts the daemon and waits until it serves. Raises SandboxError with the end of its log."""
    with place.daemon_log.open("ab") as log:
        daemon = subprocess.Popen(
            (sys.executable, "-m", "sandbox.daemon", place.mark, str(place.state_dir)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            env=_clean_environment(place),
        )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT_S
    while find_daemon(place) is None:
        code = daemon.poll()
        if code is not None or time.monotonic() > deadline:
            said = _read_log(place)
            remove_all(place)
            what = f"ended with code {code}" if code is not None else f"did not answer within {START_TIMEOUT_S:.0f} s"
            raise SandboxError(f"The sandbox could not be started: its daemon {what}.\n{said}".rstrip())
        time.sleep(POLL_S)
    caller = find_caller()
    if caller is not None:
        os.chown(place.control_socket, caller.uid, -1)
    # It outlives this process; without this, Popen would warn that nobody waited for it.
    daemon.returncode = 0


def _clean_environment(place: Place) -> dict[str, str]:
    """Nothing of the user's environment reaches the daemon and its hosts but where Python finds its code."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    if find_caller() is not None:
        kept["PYTHONDONTWRITEBYTECODE"] = "1"  # it would lie in the user's folders, and be root's
    return {**kept, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "TMPDIR": str(place.objects_dir)}


def _read_log(place: Place) -> str:
    try:
        lines = place.daemon_log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def remove_all(place: Place) -> None:
    """Removes everything of a sandbox. Raises SandboxError naming what stays."""
    left = remove(place)
    if left:
        raise SandboxError(f"This could not be removed of the sandbox {place.id}: {left}", hint="cluster sandbox reset")


@contextmanager
def locked() -> Iterator[None]:
    """One start, stop or reset at a time on this machine: they choose addresses that nobody else has.

    The lock is on the folder of all sandboxes, which goes when its last sandbox does; whoever got the lock of a folder
    that is gone by then takes the next one.
    """
    while True:
        STATE_ROOT.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(STATE_ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if STATE_ROOT.exists() and os.path.samestat(os.fstat(descriptor), STATE_ROOT.stat()):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        if not any(STATE_ROOT.iterdir()):
            STATE_ROOT.rmdir()
        os.close(descriptor)
