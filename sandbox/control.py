"""Starting, stopping and describing a project's sandbox. The one module that the command line uses.

A sandbox belongs to a project's folder. Its EC2 lives in the daemon's memory, so when the daemon ends there is
nothing worth keeping, and all of it goes.
"""

import fcntl
import json
import os
import secrets
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from provision.errors import SandboxError
from provision.progress import Event, Report
from sandbox.addressing import choose_ranges, describe_taken
from sandbox.certificates import write_certificates
from sandbox.checks import check_machine, extend_path
from sandbox.leftovers import find_leftovers, remove
from sandbox.marks import STATE_ROOT, Place, place_of, read_arguments
from sandbox.settings import DaemonStatus, HostStatus, Settings, read_settings, read_status, write_json

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
CHECKIP_PATH = "/.sandbox/checkip"
LOG_LINES = 10
# What would lead an AWS client past the sandbox, or show it credentials that are not the sandbox's.
UNSET = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN",
         "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")  # fmt: skip
UNSET_PREFIX = "AWS_ENDPOINT_URL_"


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessKey:
    """The sandbox's credentials, made anew at each start."""

    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxInfo:
    """A running sandbox. `pid`: its daemon. `private_cidr`, `public_cidr`: ranges of its instances' addresses."""

    id: str
    pid: int
    endpoint_url: str
    ca_bundle: Path
    region: str
    access_key_id: str
    secret_access_key: str
    checkip_url: str
    private_cidr: str
    public_cidr: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxStatus:
    """What there is of a sandbox. All but `id` and `state` is None or empty unless it runs; no secret in it."""

    id: str
    state: Literal["running", "crashed", "stopped"]
    state_dir: Path | None = None
    pid: int | None = None
    endpoint_url: str | None = None
    region: str | None = None
    private_cidr: str | None = None
    public_cidr: str | None = None
    hosts: tuple[HostStatus, ...] = ()


def start(project_dir: Path, *, region: str, report: Report) -> SandboxInfo:
    """Starts the project's sandbox, or returns the one that runs. What a crashed one left is removed first.

    Raises SandboxError when this machine cannot run one, or when it runs for another region.
    """
    check_machine()
    place = place_of(project_dir)
    with _locked():
        info = find_running(project_dir)
        if info is not None:
            if info.region != region:
                raise SandboxError(
                    f"The sandbox of {project_dir} runs in region {info.region}, not in {region}.",
                    hint="cluster sandbox stop",
                )
            report(Event(kind="same", what=f"the sandbox runs at {info.endpoint_url}"))
            return info
        if find_leftovers(place):
            report(Event(kind="warn", what="the sandbox had crashed: removing what is left of it"))
            _remove_all(place)
        begun = time.monotonic()
        report(Event(kind="start", what="starting the sandbox"))
        _prepare(place, project_dir, region)
        _launch(place)
        info = find_running(project_dir)
        if info is None:
            raise SandboxError(f"The sandbox ended as soon as it had started.\n{_read_log(place)}")
        report(Event(kind="done", what=f"the sandbox runs at {info.endpoint_url}", duration_s=time.monotonic() - begun))
        return info


def stop(project_dir: Path, *, report: Report) -> bool:
    """Ends the sandbox with all its instances; False when there was none. Raises SandboxError as `reset` does."""
    check_machine()
    place = place_of(project_dir)
    with _locked():
        status = _find_daemon(place)
        if status is not None:
            os.kill(status.pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while _find_daemon(place) is not None and time.monotonic() < deadline:
                time.sleep(POLL_S)
        return _remove_reported(place, report)


def reset(project_dir: Path, *, report: Report) -> bool:
    """Removes all of the sandbox, in whatever state it is; False when there was nothing.

    Raises SandboxError naming what could not be removed.
    """
    check_machine()
    with _locked():
        return _remove_reported(place_of(project_dir), report)


def _remove_reported(place: Place, report: Report) -> bool:
    if not find_leftovers(place):
        report(Event(kind="same", what="there is no sandbox here"))
        return False
    _remove_all(place)
    report(Event(kind="done", what="the sandbox is gone, with all that was in it"))
    return True


def find_running(project_dir: Path) -> SandboxInfo | None:
    """The project's sandbox if it runs. Raises SandboxError when it does but belongs to another user."""
    place = place_of(project_dir)
    status = _find_daemon(place)
    if status is None:
        return None
    try:
        settings = read_settings(place.settings_file)
        key = AccessKey(**json.loads(place.credentials_file.read_text()))
    except PermissionError as error:
        raise SandboxError(
            f"The sandbox of {project_dir} was started by another user.", hint="sudo -E cluster ..."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SandboxError(
            f"The sandbox of {project_dir} runs, but its files in {place.state_dir} are damaged: {error}",
            hint="cluster sandbox reset",
        ) from error
    endpoint_url = _endpoint_url(settings, status)
    return SandboxInfo(
        id=place.id,
        pid=status.pid,
        endpoint_url=endpoint_url,
        ca_bundle=place.ca_file,
        region=settings.region,
        access_key_id=key.access_key_id,
        secret_access_key=key.secret_access_key,
        checkip_url=endpoint_url + CHECKIP_PATH,
        private_cidr=settings.private,
        public_cidr=settings.public,
    )


def describe(project_dir: Path) -> SandboxStatus:
    """What there is of the project's sandbox, for people; needs no rights and never fails over damaged files."""
    place = place_of(project_dir)
    status = _find_daemon(place)
    if status is None:
        state: Literal["crashed", "stopped"] = "crashed" if find_leftovers(place) else "stopped"
        return SandboxStatus(id=place.id, state=state)
    try:
        settings = read_settings(place.settings_file)
    except (OSError, ValueError, KeyError, TypeError):
        return SandboxStatus(id=place.id, state="crashed", state_dir=place.state_dir, pid=status.pid)
    return SandboxStatus(
        id=place.id,
        state="running",
        state_dir=place.state_dir,
        pid=status.pid,
        endpoint_url=_endpoint_url(settings, status),
        region=settings.region,
        private_cidr=settings.private,
        public_cidr=settings.public,
        hosts=status.hosts,
    )


def environment(info: SandboxInfo) -> dict[str, str]:
    """The environment variables that lead any AWS client to the sandbox."""
    return {
        "AWS_ENDPOINT_URL": info.endpoint_url,
        "AWS_CA_BUNDLE": str(info.ca_bundle),
        "AWS_ACCESS_KEY_ID": info.access_key_id,
        "AWS_SECRET_ACCESS_KEY": info.secret_access_key,
        "AWS_REGION": info.region,
        "AWS_DEFAULT_REGION": info.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "CLUSTER_CHECKIP_URL": info.checkip_url,
    }


def unset_environment(names: Iterable[str]) -> list[str]:
    """Those of the given environment variables that must not be set for a client of the sandbox."""
    return [name for name in names if name in UNSET or name.startswith(UNSET_PREFIX)]


def _endpoint_url(settings: Settings, status: DaemonStatus) -> str:
    return f"https://{settings.ranges.gateway.ip}:{status.port}"


def _find_daemon(place: Place) -> DaemonStatus | None:
    """The daemon's status, if its process lives; a pid that another process has by now does not count."""
    try:
        status = read_status(place.status_file)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return status if place.mark in read_arguments(status.pid) else None


def _prepare(place: Place, project_dir: Path, region: str) -> None:
    """Writes what the daemon reads: settings, credentials, certificates."""
    ranges = choose_ranges(describe_taken(), seed=int(place.id, 16))
    place.hosts_dir.mkdir(parents=True)
    settings = Settings(
        project_dir=str(project_dir.resolve()),
        region=region,
        private=str(ranges.private),
        public=str(ranges.public),
    )
    write_json(place.settings_file, settings)
    write_json(place.credentials_file, _make_access_key(), mode=0o600)
    # Started with sudo: the credentials are for the one who typed it.
    if "SUDO_UID" in os.environ:
        os.chown(place.credentials_file, int(os.environ["SUDO_UID"]), -1)
    write_certificates(place, str(ranges.gateway.ip))


def _make_access_key() -> AccessKey:
    letters = string.ascii_uppercase + "234567"
    return AccessKey(
        access_key_id="AKIA" + "".join(secrets.choice(letters) for _ in range(16)),
        secret_access_key=secrets.token_urlsafe(30),
    )


def _launch(place: Place) -> None:
    """Starts the daemon and waits until it serves. Raises SandboxError with the end of its log."""
    with place.daemon_log.open("ab") as log:
        daemon = subprocess.Popen(
            (sys.executable, "-m", "sandbox.daemon", place.mark, str(place.state_dir)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, env=_clean_environment(),
        )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT_S
    while _find_daemon(place) is None:
        code = daemon.poll()
        if code is not None or time.monotonic() > deadline:
            said = _read_log(place)
            _remove_all(place)
            what = f"ended with code {code}" if code is not None else f"did not answer within {START_TIMEOUT_S:.0f} s"
            raise SandboxError(f"The sandbox could not be started: its daemon {what}.\n{said}".rstrip())
        time.sleep(POLL_S)
    # The daemon outlives this process; nobody here waits for it.
    daemon.returncode = 0


def _clean_environment() -> dict[str, str]:
    """Nothing of the user's environment reaches the daemon and its hosts but where Python finds its code."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


def _read_log(place: Place) -> str:
    try:
        lines = place.daemon_log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def _remove_all(place: Place) -> None:
    left = remove(place)
    if left:
        raise SandboxError(f"This could not be removed of the sandbox {place.id}: {left}", hint="cluster sandbox reset")


@contextmanager
def _locked() -> Iterator[None]:
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
