"""Starts, stops and describes a project's sandbox, for the command line.

A sandbox belongs to a project's folder. Its EC2 state is in the daemon's memory, so everything else is removed when the
daemon ends.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ec2_sandbox import packages
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.errors import NotFoundError, SandboxError
from ec2_sandbox.faults import FaultError
from ec2_sandbox.hosts.hosts import check_kernel, check_machine, check_state_folder, sudo_command
from ec2_sandbox.paths import (
    CHECKIP_PATH,
    STATE_ROOT,
    DaemonStatus,
    HostStatus,
    SandboxPaths,
    Settings,
    ask,
    find_daemon,
    find_leftovers,
    find_places,
    paths_of,
    read_log_end,
    read_settings,
    remove_all,
)
from ec2_sandbox.progress import Event, Report
from ec2_sandbox.start import launch, prepare
from ec2_sandbox.sudo import as_root

# Variables that direct an AWS client away from the sandbox, or to the credentials of another account.
UNSET = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN",
         "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")  # fmt: skip
START = "ec2-sandbox start"
UNSET_PREFIX = "AWS_ENDPOINT_URL_"
# Never reached through a proxy. The instance metadata service is at the last address.
LOCAL = ("localhost", "127.0.0.1", "169.254.169.254")


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxInfo:
    """A running sandbox: its files, its settings with its credentials, and its daemon."""

    paths: SandboxPaths
    settings: Settings
    daemon: DaemonStatus

    @property
    def endpoint_url(self) -> str:
        """The address of the API."""
        return f"https://{self.settings.ranges.gateway.ip}:{self.daemon.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxStatus:
    """The state of a sandbox, without secrets. Fields that are not known are None or empty.

    state: "folder-gone" if the folder was moved or deleted, whether the daemon runs or not.
    """

    id: str
    state: Literal["running", "crashed", "stopped", "folder-gone"]
    folder: str | None = None
    state_dir: Path | None = None
    pid: int | None = None
    endpoint_url: str | None = None
    region: str | None = None
    private_cidr: str | None = None
    public_cidr: str | None = None
    hosts: tuple[HostStatus, ...] = ()


@as_root()
def start(project_dir: Path, config: FolderSettings, *, report: Report, owner: int | None = None) -> SandboxInfo:
    """Starts the project's sandbox, or returns the running one. Removes the leftovers of a crashed sandbox first.

    A running sandbox keeps its own settings; a difference is reported.
    owner: the pid of a process. When that process ends, however it ends, the sandbox removes itself.

    Raises SandboxError if this machine cannot run a sandbox, or if the sandbox runs in another region.
    """
    check_machine()
    paths = paths_of(project_dir)
    with locked():
        info = find_running(project_dir)
        if info is not None:
            known = info.settings.config
            if known.region != config.region:
                raise SandboxError(
                    f"The sandbox of {project_dir} runs in region {known.region}, not in {config.region}.",
                    hint="ec2-sandbox stop",
                )
            if known != config:
                what = "the settings have changed; they take effect after ec2-sandbox stop"
                report(Event(kind="warn", what=what))
            report(Event(kind="same", what=f"the sandbox runs at {info.endpoint_url}"))
            return info
        if find_leftovers(paths):
            report(Event(kind="warn", what="the sandbox had crashed; removing what it left"))
            remove_all(paths)
        check_kernel()
        if config.hosts == "real":
            check_state_folder(STATE_ROOT)
        begun = time.monotonic()
        report(Event(kind="start", what="starting the sandbox"))
        try:
            prepare(paths, project_dir, config, owner=owner)
            if config.packages:
                report(Event(kind="start", what=f"fetching {', '.join(config.packages)}"))
                packages.fetch(config.packages, paths.packages_dir)
            launch(paths)
        except (SandboxError, KeyboardInterrupt):
            remove_all(paths)
            raise
        info = find_required(project_dir)
        report(Event(kind="done", what=f"the sandbox runs at {info.endpoint_url}", duration_s=time.monotonic() - begun))
        return info


@as_root()
def reset(project_dir: Path, *, report: Report) -> bool:
    """Removes the sandbox and its instances, whatever its state. Returns False if there was none.

    Raises SandboxError that lists what could not be removed.
    """
    paths = paths_of(project_dir)
    if sys.platform != "linux" or not find_leftovers(paths):
        report(Event(kind="same", what="this folder has no sandbox"))
        return False
    check_machine()
    with locked():
        remove_all(paths)
    report(Event(kind="done", what="removed the sandbox and everything in it"))
    return True


@as_root()
def list_all() -> list[SandboxStatus]:
    """Returns all sandboxes of this machine that this user can see."""
    return [_describe(paths) for paths in find_places()] if sys.platform == "linux" else []


def describe(project_dir: Path) -> SandboxStatus:
    """Returns the state of the project's sandbox, even if its files are damaged.

    Raises SandboxError if it belongs to another user.
    """
    return _describe(_find_paths(project_dir))


def _describe(paths: SandboxPaths) -> SandboxStatus:
    status, settings = find_daemon(paths), _find_settings(paths)
    pid = status.pid if status else None
    if settings is None:
        return SandboxStatus(id=paths.id, state="crashed" if find_leftovers(paths) else "stopped", pid=pid)
    is_there = Path(settings.project_dir).is_dir()
    info = SandboxInfo(paths=paths, settings=settings, daemon=status) if status else None
    return SandboxStatus(
        id=paths.id, state="folder-gone" if not is_there else "running" if status else "crashed",
        folder=settings.project_dir, state_dir=paths.state_dir, pid=pid,
        endpoint_url=info.endpoint_url if info else None, region=settings.config.region,
        private_cidr=settings.private, public_cidr=settings.public, hosts=_find_hosts(paths) if status else (),
    )  # fmt: skip


def _find_hosts(paths: SandboxPaths) -> tuple[HostStatus, ...]:
    """Returns the hosts of a running sandbox, or () of one that is ending."""
    try:
        return tuple(HostStatus(**host) for host in ask(paths, do="hosts"))
    except OSError:
        return ()


def _find_settings(paths: SandboxPaths) -> Settings | None:
    """Returns the sandbox's settings, or None if their file is missing or damaged."""
    try:
        return read_settings(paths)
    except (OSError, ValueError):
        return None


@as_root()
def prune(ids: Sequence[str], *, report: Report) -> list[SandboxStatus]:
    """Removes those of these sandboxes that have crashed or whose folder is gone. Returns them. Raises SandboxError."""
    check_machine()
    removed = []
    with locked():
        for paths in find_places():
            if paths.id in ids and (found := _describe(paths)).state != "running":
                remove_all(paths)
                removed.append(found)
                report(Event(kind="done", what=f"removed the sandbox {paths.id} of {found.folder or 'unknown folder'}"))
    return removed


def find_running(project_dir: Path) -> SandboxInfo | None:
    """Returns the project's sandbox if it is running, or None. Raises SandboxError if it belongs to another user."""
    paths = _find_paths(project_dir)
    status, settings = find_daemon(paths), _find_settings(paths)
    if status is None or settings is None:
        return None
    if settings.owner is not None and not Path(f"/proc/{settings.owner}").exists():
        return None  # it is ending
    return SandboxInfo(paths=paths, settings=settings, daemon=status)


@as_root()
def install(project_dir: Path, names: Sequence[str], *, report: Report) -> int:
    """Installs packages of the machine's distribution on all hosts, including later ones.

    Returns the number of running hosts. Raises SandboxError if the sandbox is not running, if the packages cannot be
    fetched, or if a host cannot install them.
    """
    paths = find_required(project_dir).paths
    with locked():
        report(Event(kind="start", what=f"fetching {', '.join(names)}"))
        folder = packages.fetch(names, paths.packages_dir)
        hosts = [host for host in list_hosts(project_dir) if host.state == "running" and host.pid is not None]
        if folder is None:
            report(Event(kind="same", what="this machine already has them, and so do all hosts"))
        else:
            report(Event(kind="start", what=f"installing {len(list(folder.iterdir()))} packages on {len(hosts)} hosts"))
            packages.install(folder, hosts)
    return len(hosts)


def count_objects(project_dir: Path) -> int:
    """Returns the number of objects in the running sandbox's S3. Raises SandboxError."""
    return int(_ask(project_dir, do="objects"))


def clear(project_dir: Path) -> None:
    """Ends all hosts of the running sandbox, and forgets all state, as after its start. Raises SandboxError."""
    _ask(project_dir, do="clear")


def list_hosts(project_dir: Path) -> list[HostStatus]:
    """Returns the hosts at this moment. Raises SandboxError."""
    return [HostStatus(**host) for host in _ask(project_dir, do="hosts")]


def cause_fault(project_dir: Path, text: str) -> dict[str, Any]:
    """Arms a fault in the running sandbox, or causes an immediate fault. text: see faults.py.

    Returns the fault as JSON; `did` describes what an immediate fault did. Raises SandboxError.
    """
    return dict(_ask(project_dir, do="fault", text=text))


def list_faults(project_dir: Path) -> list[dict[str, Any]]:
    """Returns the armed faults of the running sandbox, oldest first. Raises SandboxError."""
    return list(_ask(project_dir, do="faults"))


def disarm_faults(project_dir: Path, which: str) -> list[dict[str, Any]]:
    """Disarms the fault with this id, or "all" faults. Returns the disarmed faults. Raises SandboxError."""
    return list(_ask(project_dir, do="disarm", which=which))


def _ask(project_dir: Path, **request: str) -> Any:
    info = find_required(project_dir)
    try:
        return ask(info.paths, **request)
    except FaultError as error:
        raise SandboxError(str(error), hint="ec2-sandbox fault --help") from error
    except OSError as error:
        find_required(project_dir)  # it may have ended in the meantime
        raise SandboxError(f"The sandbox does not answer: {error}", hint="ec2-sandbox status") from error


def _find_paths(project_dir: Path) -> SandboxPaths:
    """Returns the sandbox's paths. Raises SandboxError if another user started it, whose files are not readable."""
    paths = paths_of(project_dir)
    if paths.state_dir.exists() and not os.access(paths.state_dir, os.R_OK | os.X_OK, effective_ids=True):
        raise SandboxError(f"The sandbox of {project_dir} was started by another user.", hint=sudo_command())
    return paths


def find_required(project_dir: Path) -> SandboxInfo:
    """Returns the project's running sandbox. Raises NotFoundError if there is none."""
    info = find_running(project_dir)
    if info is None:
        raise NotFoundError(_explain_missing(paths_of(project_dir)), hint=START)
    return info


def _explain_missing(paths: SandboxPaths) -> str:
    try:
        return f"the sandbox of this folder has crashed; its log ends with:\n{read_log_end(paths)}"
    except OSError:
        return "the sandbox of this folder is not running"


def api_log(project_dir: Path) -> Path:
    """Returns the path of the API log, which has one line of JSON for each call (ec2_sandbox/api/log.py).

    Raises SandboxError if the sandbox is not running.
    """
    return find_required(project_dir).paths.api_log


def environment(info: SandboxInfo) -> dict[str, str]:
    """Returns the environment variables that direct any AWS client to the sandbox.

    This process's proxies stay, for everything but this machine and the sandbox.
    """
    settings = info.settings
    # urllib reads the lower-case name and compares whole addresses; curl and reqwest also know ranges.
    excluded = [word.strip() for name in ("no_proxy", "NO_PROXY") for word in os.environ.get(name, "").split(",")]
    excluded += [*LOCAL, str(settings.ranges.gateway.ip), settings.private, settings.public]
    no_proxy = ",".join(dict.fromkeys(filter(None, excluded)))
    return {
        "AWS_ENDPOINT_URL": info.endpoint_url,
        "AWS_CA_BUNDLE": str(info.paths.ca_file),
        "AWS_ACCESS_KEY_ID": settings.access_key_id,
        "AWS_SECRET_ACCESS_KEY": settings.secret_access_key,
        "AWS_REGION": settings.config.region,
        "AWS_DEFAULT_REGION": settings.config.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        # Some tools require these files, and do not accept /dev/null.
        "AWS_CONFIG_FILE": str(info.paths.aws_dir / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(info.paths.aws_dir / "credentials"),
        "CLUSTER_CHECKIP_URL": info.endpoint_url + CHECKIP_PATH,
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


def unset_environment(names: Iterable[str]) -> list[str]:
    """Returns those of the environment variables `names` that must not be set for a client of the sandbox."""
    return [name for name in names if name in UNSET or name.startswith(UNSET_PREFIX)]


@contextmanager
def locked() -> Iterator[None]:
    """Allows one start or reset at a time, because they choose addresses that no other sandbox has.

    The lock is on the folder of all sandboxes.
    """
    STATE_ROOT.mkdir(parents=True, exist_ok=True)
    STATE_ROOT.chmod(0o711)  # listing it would reveal other users' sandboxes
    descriptor = os.open(STATE_ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
