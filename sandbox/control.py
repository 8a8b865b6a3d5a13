"""Starting, stopping and describing a project's sandbox. The one module that the command line uses.

A sandbox belongs to a project's folder. Its EC2 lives in the daemon's memory, so when the daemon ends there is
nothing worth keeping, and all of it goes.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provision.errors import SandboxError
from provision.progress import Event, Report
from provision.sudo import as_root
from sandbox.checks import check_kernel, check_machine, sudo_command
from sandbox.config import SandboxConfig
from sandbox.control_socket import ask
from sandbox.faults import FaultError
from sandbox.launching import find_daemon, launch, locked, prepare, read_policy, remove_all
from sandbox.leftovers import find_leftovers
from sandbox.marks import Place, place_of
from sandbox.settings import CHECKIP_PATH, DaemonStatus, HostStatus, Settings, read_access_key, read_settings

STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
# What would lead an AWS client past the sandbox, or show it credentials that are not the sandbox's.
UNSET = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN",
         "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")  # fmt: skip
UNSET_PREFIX = "AWS_ENDPOINT_URL_"


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


@as_root()
def start(project_dir: Path, *, region: str, report: Report, config: SandboxConfig | None = None) -> SandboxInfo:
    """Starts the project's sandbox, or returns the one that runs. What a crashed one left is removed first.

    config: [sandbox] of cluster.toml; one that runs keeps what it was started with, and that is reported.

    Raises SandboxError when this machine cannot run one, or when it runs for another region; ConfigError when the
    policy that config names cannot be read or understood.
    """
    check_machine()
    place = place_of(project_dir)
    config = config or SandboxConfig()
    policy = read_policy(project_dir, config)
    with locked():
        info = find_running(project_dir)
        if info is not None:
            if info.region != region:
                raise SandboxError(
                    f"The sandbox of {project_dir} runs in region {info.region}, not in {region}.",
                    hint="cluster sandbox stop",
                )
            settings = read_settings(place.settings_file)
            if (settings.config, settings.policy) != (config, policy):
                what = "[sandbox] is not what the sandbox was started with; it counts after cluster sandbox stop"
                report(Event(kind="warn", what=what))
            report(Event(kind="same", what=f"the sandbox runs at {info.endpoint_url}"))
            return info
        if find_leftovers(place):
            report(Event(kind="warn", what="the sandbox had crashed: removing what is left of it"))
            remove_all(place)
        check_kernel()
        begun = time.monotonic()
        report(Event(kind="start", what="starting the sandbox"))
        prepare(place, project_dir, region, config, policy=policy)
        launch(place)
        info = find_running(project_dir)
        if info is None:
            raise SandboxError(
                f"The sandbox ended as soon as it had started; {place.daemon_log} says why.",
                hint="cluster sandbox reset",
            )
        report(Event(kind="done", what=f"the sandbox runs at {info.endpoint_url}", duration_s=time.monotonic() - begun))
        return info


@as_root()
def stop(project_dir: Path, *, report: Report) -> bool:
    """Ends the sandbox with all its instances; False when there was none. Raises SandboxError as `reset` does."""
    check_machine()
    place = place_of(project_dir)
    with locked():
        status = find_daemon(place)
        if status is not None:
            os.kill(status.pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while find_daemon(place) is not None and time.monotonic() < deadline:
                time.sleep(POLL_S)
        return _remove_reported(place, report)


@as_root()
def reset(project_dir: Path, *, report: Report) -> bool:
    """Removes all of the sandbox, in whatever state it is; False when there was nothing.

    Raises SandboxError naming what could not be removed.
    """
    check_machine()
    with locked():
        return _remove_reported(place_of(project_dir), report)


def _remove_reported(place: Place, report: Report) -> bool:
    if not find_leftovers(place):
        report(Event(kind="same", what="there is no sandbox here"))
        return False
    remove_all(place)
    report(Event(kind="done", what="the sandbox is gone, with all that was in it"))
    return True


def find_running(project_dir: Path) -> SandboxInfo | None:
    """The project's sandbox if it runs. Raises SandboxError when it does but belongs to another user."""
    place = place_of(project_dir)
    status = find_daemon(place)
    if status is None:
        return None
    try:
        with as_root():
            settings = read_settings(place.settings_file)
            key = read_access_key(place.credentials_file)
    except PermissionError as error:
        raise SandboxError(f"The sandbox of {project_dir} was started by another user.", hint=sudo_command()) from error
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


def cause_fault(project_dir: Path, text: str) -> dict[str, Any]:
    """Arms a fault in the running sandbox, or brings an immediate one about; text: as sandbox/faults.py reads it.

    The fault, as JSON has it; `did` says what an immediate one did. Raises SandboxError.
    """
    result: dict[str, Any] = _ask(project_dir, {"do": "fault", "text": text})
    return result


def list_faults(project_dir: Path) -> list[dict[str, Any]]:
    """The faults that are armed in the running sandbox, the oldest first. Raises SandboxError."""
    result: list[dict[str, Any]] = _ask(project_dir, {"do": "faults"})
    return result


def disarm_faults(project_dir: Path, which: str) -> list[dict[str, Any]]:
    """Disarms one fault by its id, or "all"; what was disarmed. Raises SandboxError."""
    result: list[dict[str, Any]] = _ask(project_dir, {"do": "disarm", "which": which})
    return result


def _ask(project_dir: Path, asked: Mapping[str, Any]) -> Any:
    find_required(project_dir)
    try:
        with as_root():
            return ask(place_of(project_dir).control_socket, asked)
    except FaultError as error:
        raise SandboxError(str(error), hint="cluster sandbox fault --help") from error
    except PermissionError as error:
        raise SandboxError(f"The sandbox of {project_dir} was started by another user.", hint=sudo_command()) from error
    except OSError as error:
        raise SandboxError(f"The sandbox does not answer: {error}", hint="cluster sandbox status") from error


def find_required(project_dir: Path) -> SandboxInfo:
    """The project's running sandbox. Raises SandboxError when there is none."""
    info = find_running(project_dir)
    if info is None:
        raise SandboxError("the sandbox of this folder is not running", hint="cluster sandbox start")
    return info


def api_log(project_dir: Path) -> Path:
    """The file with a line of JSON for each API call; see sandbox/api_log.py. Raises SandboxError."""
    find_required(project_dir)
    return place_of(project_dir).api_log


def describe(project_dir: Path) -> SandboxStatus:
    """What there is of the project's sandbox, for people; needs no rights and never fails over damaged files."""
    place = place_of(project_dir)
    status = find_daemon(place)
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
