"""The Python API: `with Sandbox() as sandbox:`, a sandbox that lives as long as a block of a program.

It needs root's rights. An ordinary user's program gets them in the user's own namespaces: `ec2-sandbox shell -- python
program.py` (rootless.py).
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from ec2_sandbox import control, rootless
from ec2_sandbox.cli.settings import make_settings
from ec2_sandbox.errors import NotFoundError, SandboxError
from ec2_sandbox.faults import Fault, fault, render_fault
from ec2_sandbox.hosts.inside import words_inside
from ec2_sandbox.paths import HostStatus, paths_of
from ec2_sandbox.progress import Report, silent

__all__ = ["Host", "Sandbox", "fault"]

TEMPORARY = "ec2-sandbox-"
"""With this, the name of a sandbox's temporary folder begins. The folder stays empty."""


class Sandbox:
    """A sandbox of this program's own. Use it in a `with` block, or call `start` and `stop`.

    folder: the folder that it belongs to, for `ec2-sandbox status` and the like; default: a temporary one.
    region, others: its region, and up to two more that can have instances.
    hosts: "real": a Linux host for each instance; "none": instances without one, for the API only.
    boot_delay_s, end_delay_s: seconds that an instance is pending, or shutting-down or stopping, at least.
    consistency_delay_s: seconds for which the id of what was just made is not found.
    link_mbit: bandwidth of each host's link in Mbit/s, in each direction; 0: unlimited.
    quotas: vCPUs that may run, by the quota's code in AWS's Service Quotas.
    faults: those that are armed from the start, and after each `clear`.
    packages: packages of this machine's distribution that hosts have.
    report: gets what `start` and `stop` do.

    The sandbox ends with its block, also after an exception and Ctrl-C. It removes itself if this process is killed. If
    its own processes are killed at the same time, `ec2-sandbox prune` removes what is left.
    Raises UsageError for a wrong setting.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        region: str = "us-east-1",
        others: Sequence[str] = (),
        hosts: Literal["real", "none"] = "real",
        boot_delay_s: float = 0.0,
        end_delay_s: float = 0.0,
        consistency_delay_s: float = 0.0,
        link_mbit: float = 0.0,
        quotas: Mapping[str, int] | None = None,
        faults: Iterable[Fault | str] = (),
        packages: Sequence[str] = (),
        report: Report = silent,
    ) -> None:
        given = {
            "region": region, "others": others, "hosts": hosts, "boot_delay_s": boot_delay_s,
            "end_delay_s": end_delay_s, "consistency_delay_s": consistency_delay_s, "link_mbit": link_mbit,
            "quotas": quotas or {}, "faults": tuple(map(_text_of, faults)), "packages": packages,
        }  # fmt: skip
        self._settings, self._report = make_settings(given), report
        self._folder = Path(folder) if folder is not None else None
        self._temporary: Path | None = None
        self._info: control.SandboxInfo | None = None
        self._starter = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the sandbox, which takes about two seconds.

        Raises SandboxError if this machine cannot run it, if this process lacks the rights, or if the folder already
        has a running sandbox. Its `hint` is the next command to run.
        """
        if rootless.is_ordinary_user():
            raise SandboxError(
                "This process is outside the namespaces in which an ordinary user's sandbox runs.",
                hint=shlex.join(["ec2-sandbox", "shell", "--", *sys.orig_argv]),
            )
        if self._folder is None:
            self._temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        elif control.find_running(self._folder) is not None:
            raise SandboxError(f"The folder {self._folder} already has a sandbox.", hint="ec2-sandbox stop")
        self._starter = os.getpid()
        try:
            self._info = control.start(self._home, self._settings, report=self._report, owner=self._starter)
        except BaseException:  # also Ctrl-C
            self.stop()
            raise

    def stop(self) -> None:
        """Removes the sandbox with everything in it. Does nothing if it does not run, or in a forked process."""
        if self._starter != os.getpid():
            return
        try:
            control.reset(self._home, report=self._report)
        finally:
            self._starter, self._info = 0, None
            if self._temporary is not None:
                remove_temporary_folder(self._temporary)

    def clear(self) -> None:
        """Ends all hosts, and forgets the state of EC2, S3 and all other services, as after `start`.

        Addresses and armed faults are also those of a start; packages that were installed later stay. Without hosts,
        it takes a fraction of a second. Raises SandboxError.
        """
        control.clear(self._home)

    @property
    def endpoint_url(self) -> str:
        """The address of the API."""
        return self._running.endpoint_url

    @property
    def region(self) -> str:
        """The region."""
        return self._settings.region

    @property
    def pid(self) -> int:
        """The pid of its daemon."""
        return self._running.daemon.pid

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, changed so that all AWS tools in a child process use the sandbox."""
        unset = control.unset_environment(os.environ)
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        return {**kept, **control.environment(self._running)}

    def client(self, service: str, **options: Any) -> Any:
        """Returns a boto3 client of the sandbox, whatever this process's environment and ~/.aws are.

        options: those of `boto3.client`.
        """
        import boto3  # noqa: PLC0415 - it takes 0.2 s, and not all programs use it
        import botocore.config  # noqa: PLC0415 - as above
        import botocore.session  # noqa: PLC0415 - as above

        info, ca_file = self._running, str(self._running.paths.ca_file)
        nothing = {"profile": None, "config_file": os.devnull, "credentials_file": os.devnull}
        own = {name: (None, None, value, None) for name, value in nothing.items()}  # none from the environment
        session: Any = boto3.Session(
            info.settings.access_key_id, info.settings.secret_access_key, region_name=self.region,
            botocore_session=botocore.session.Session(session_vars=own),
        )  # fmt: skip
        config = botocore.config.Config(proxies={}).merge(options.pop("config", botocore.config.Config()))
        return session.client(
            service,
            **{"endpoint_url": info.endpoint_url, "verify": ca_file, "config": config, **options},
        )

    @property
    def faults(self) -> "Faults":
        """The faults of the sandbox."""
        return Faults(self._home)

    @property
    def hosts(self) -> dict[str, "Host"]:
        """The hosts at this moment, by the ids of the instances that are not terminated."""
        paths = paths_of(self._home)
        return {
            host.instance_id: Host(**asdict(host), console_file=paths.console_of(host.instance_id))
            for host in control.list_hosts(self._home)
        }

    @property
    def _home(self) -> Path:
        folder = self._folder or self._temporary
        if folder is None:
            raise NotFoundError("The sandbox has not been started.", hint="with Sandbox() as sandbox:")
        return folder

    @property
    def _running(self) -> control.SandboxInfo:
        if self._info is None:
            raise NotFoundError("The sandbox does not run.", hint="with Sandbox() as sandbox:")
        return self._info


def _text_of(fault: Fault | str) -> str:
    return fault if isinstance(fault, str) else render_fault(fault)


class Faults:
    """The faults of a running sandbox. All methods raise SandboxError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, fault: Fault | str) -> Fault:
        """Arms a fault, or causes it at once if its kind names instances. Returns it with its id, if it is armed.

        fault: from `ec2_sandbox.fault`, or as text: `capacity zone=us-east-1a count=2`.
        """
        return _read_fault(control.cause_fault(self._folder, _text_of(fault)))

    def list(self) -> tuple[Fault, ...]:
        """Returns the armed faults, oldest first."""
        return tuple(map(_read_fault, control.list_faults(self._folder)))

    def remove(self, fault_id: str = "all") -> None:
        """Removes the armed fault with this id, or all of them."""
        control.disarm_faults(self._folder, fault_id)


def _read_fault(found: Mapping[str, Any]) -> Fault:
    return Fault(**{name: found[name] for name in ("kind", "parameters", "left", "id", "struck")})


@dataclass(frozen=True, kw_only=True, slots=True)
class Host(HostStatus):
    """The host of an instance, as it was when it was looked up.

    It has `instance_id`, `state` (the instance's, such as "running"), and these, or None: `private_ip`, `public_ip` and
    `pid` (of the host's process 1 on this machine).
    """

    console_file: Path

    def console(self) -> str:
        """Returns the console output since the launch; empty before the host boots."""
        try:
            return self.console_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def run(
        self, *words: str, stdin: str = "", check: bool = True, timeout_s: float = 60.0
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the host as root, without ssh, and returns its exit code, stdout and stderr.

        Raises SandboxError if the host does not run, subprocess.CalledProcessError with `check` if the command fails,
        or subprocess.TimeoutExpired.
        """
        if self.pid is None:
            raise SandboxError(f"{self.instance_id} is {self.state}, and has no running host.")
        try:
            return subprocess.run(
                words_inside(self.pid, *words), input=stdin, capture_output=True, text=True, errors="replace",
                check=check, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            error.cmd = words  # without those that enter the host
            error.add_note(error.stderr)
            raise


def remove_temporary_folder(folder: Path) -> None:
    """Removes a sandbox's temporary folder, unless somebody has put files into it."""
    if folder.name.startswith(TEMPORARY):
        with suppress(OSError):
            folder.rmdir()
