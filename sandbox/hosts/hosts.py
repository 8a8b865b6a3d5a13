"""Starting and ending hosts, each a process of the machine's and, below it, process 1 of its namespaces (pid1.py)."""

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from foundation.errors import SandboxError
from sandbox.hosts import cgroups
from sandbox.hosts.files import PATH, POWER_OFF_SIGNAL, HostSpec
from sandbox.hosts.network import CommandError, Network, run_quietly
from sandbox.place import Place, wait_for_loop_devices

PID1 = Path(__file__).with_name("pid1.py")
PYTHON = "/usr/bin/python3"
BOOT_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 900.0
END_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 8.0  # a little more than process 1 gives the others (pid1.py)
# The exit codes of a host that was shut down from inside: those of pid1.py, or, after a call of reboot(2), the signals
# with which the kernel ends a pid namespace.
ENDINGS: dict[int, Literal["power-off", "reboot"]] = {
    70: "power-off", 71: "reboot", -signal.SIGINT: "power-off", -signal.SIGHUP: "reboot",
}  # fmt: skip
POLL_S = 0.01


class Folder:
    """An instance's folder on the machine."""

    def __init__(self, place: Place, instance_id: str) -> None:
        self.path = place.hosts_dir / instance_id
        self.disk = self.path / "disk"  # the image of the root volume; sparse
        # Where pid1.py mounts, in its own mount namespace, the root volume, the machine's system, and the host's root.
        self.mount_points = tuple(self.path / name for name in ("volume", "stage", "root"))
        self.console = self.path / "console.log"  # the console output since the launch
        self.cgroup = place.cgroup / instance_id if place.cgroup else None


class BootError(Exception):
    """A host did not come up; the message is for the instance's state reason."""


class Host:
    """A started host. `boot` and `end` may be called in any thread, `spawn` only in the main one."""

    def __init__(self, folder: Folder, process: subprocess.Popen[bytes], ready_fd: int) -> None:
        self.folder = folder
        self._process = process
        self._ready_fd = ready_fd
        self._ending = threading.Event()
        self._booting = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The machine's pid of the host's process 1; None before it is started and after it has ended."""
        parent = self._process.pid
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # While it boots, its parent has another child for a moment.
        outside = _namespace_of(parent, "pid")
        return next((int(pid) for pid in children if _namespace_of(pid, "pid") not in (outside, None)), None)

    @property
    def exit_code(self) -> int | None:
        """None while the host lives."""
        return self._process.poll()

    @property
    def ending(self) -> Literal["power-off", "reboot"] | None:
        """How the host was shut down from inside; None while it lives or if it ended in another way."""
        return ENDINGS.get(self.exit_code) if self.exit_code is not None else None

    def boot(self, network: Network, number: int, spec: HostSpec, mac_address: str, addresses: tuple[str, ...]) -> None:
        """Makes the disk, connects the host and waits until its sshd answers. Raises BootError."""
        with self._booting:
            deadline = time.monotonic() + (INSTALL_TIMEOUT_S if any(Path(spec.packages).iterdir()) else BOOT_TIMEOUT_S)
            try:
                make_disk(self.folder, spec.disk_bytes)
                if self.folder.cgroup:
                    cgroups.make(self.folder.cgroup, spec.first_uid or 0)
                self._describe(spec)
                while _namespace_of(self._process.pid, "net") in (_namespace_of("self", "net"), None):
                    self._still_booting(deadline)
                network.plug_in(number, self._process.pid, mac_address, addresses)
            except (OSError, CommandError) as error:
                raise BootError(f"the host could not be started: {error}") from error
            ready = select.poll()
            ready.register(self._ready_fd, select.POLLIN)
            while not ready.poll(POLL_S * 1000):
                self._still_booting(deadline)

    def _describe(self, spec: HostSpec) -> None:
        assert self._process.stdin is not None  # noqa: S101 -- tells mypy what PIPE means
        self._process.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        self._process.stdin.flush()

    def _still_booting(self, deadline: float) -> None:
        if self._ending.wait(POLL_S):
            raise BootError("it was ended while it booted")
        if self.exit_code is not None:
            raise BootError(f"process 1 ended with code {self.exit_code}; see the console output")
        if time.monotonic() > deadline:
            raise BootError("it was not up in time; see the console output")

    def kill(self) -> None:
        """Kills every process of the host, at once; `end` waits for it.

        SIGKILL to process 1 is enough: the kernel ends the rest of its pid namespace before it is reaped.
        """
        self._ending.set()
        _kill(self.pid or self._process.pid)

    def shut_down(self) -> None:
        """Asks the host to shut down, as EC2 does before it stops an instance; then as `end`."""
        self._ending.set()
        first = self.pid
        if first is not None:
            _kill(first, POWER_OFF_SIGNAL)
            try:
                self._process.wait(SHUTDOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass  # `end` kills it
        self.end()

    def end(self) -> None:
        """Kills the host and waits until its namespaces and its loop device are gone."""
        self.kill()
        self._process.wait(END_TIMEOUT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with self._booting:
            os.close(self._ready_fd)
            if self.folder.cgroup:
                cgroups.remove(self.folder.cgroup)
        wait_for_loop_devices(self.folder.path, END_TIMEOUT_S)


def spawn(place: Place, instance_id: str) -> Host:
    """Starts an instance's process 1 in namespaces of its own, where it waits for `Host.boot`.

    Call it in the main thread: the host must end with the daemon, and the kernel's signal for that comes when the
    *thread* that started a process ends.
    """
    folder = Folder(place, instance_id)
    for path in folder.mount_points:
        path.mkdir(parents=True, exist_ok=True)
    ready_read, ready_write = os.pipe()
    with folder.console.open("ab") as console:
        process = subprocess.Popen(
            (PYTHON, "-I", "-S", "-B", str(PID1), f"{place.mark}:{instance_id}", str(ready_write)),
            stdin=subprocess.PIPE, stdout=console, stderr=console, start_new_session=True, cwd="/",
            env={"PATH": PATH, "LANG": "C.UTF-8"}, pass_fds=(ready_write,),
        )  # fmt: skip
    os.close(ready_write)
    return Host(folder, process, ready_read)


def make_disk(folder: Folder, disk_bytes: int) -> None:
    """Makes an empty root volume; keeps an existing one."""
    if folder.disk.exists():
        return
    fresh = folder.disk.with_suffix(".new")
    with fresh.open("wb") as image:
        image.truncate(disk_bytes)
    # No journal: hosts do not survive the machine anyway.
    run_quietly(("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal",
                 "-E", "lazy_itable_init=1,nodiscard", str(fresh)))  # fmt: skip
    fresh.rename(folder.disk)


def _namespace_of(pid: int | str, kind: str) -> Path | None:
    """A process's namespace; None when it has ended."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").readlink()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


# --- what the machine must have for it

# Folders of sshd and others that are not in an ordinary user's PATH.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
COMMANDS = (
    "sshd", "ssh-keygen", "ip", "tc", "nft", "unshare", "nsenter", "setpriv", "mount", "pivot_root", "mkfs.ext4",
    "sudo",
)  # fmt: skip
TRIAL_TIMEOUT_S = 30


def check_machine() -> None:
    """Raises SandboxError, with what to do, when this machine cannot run a sandbox."""
    if sys.platform != "linux":
        raise SandboxError(
            f"The sandbox needs Linux, and this is {sys.platform}.",
            hint='a Linux machine or virtual machine, or cloud = "aws" in cluster.toml',
        )
    if os.geteuid() != 0:
        raise SandboxError(
            "The sandbox makes network namespaces and mounts, for which it must be root.", hint=sudo_command()
        )
    add_sbin()
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if not Path(PYTHON).exists():
        missing.append(PYTHON)
    if missing:
        raise SandboxError(
            f"The sandbox needs {', '.join(missing)}, which this machine does not have.",
            hint=shlex.join(["bash", str(Path(__file__).parents[1] / "system-packages")]),
        )


def add_sbin() -> None:
    """Adds the folders to PATH that an ordinary user's does not have."""
    path = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join([*path, *(folder for folder in SBIN if folder not in path)])


def sudo_command() -> str:
    """This command with root's rights for the sandbox."""
    return shlex.join(["sudo", "-E", *sys.argv])


def check_kernel() -> None:
    """Raises SandboxError when the kernel refuses what hosts are made of, as it does in most containers."""
    done = subprocess.run(
        (PYTHON, "-I", "-S", "-B", str(PID1), "try"),
        capture_output=True,
        text=True,
        check=False,
        timeout=TRIAL_TIMEOUT_S,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise SandboxError(
            f"This machine does not let root make what the sandbox's hosts consist of: {reason}",
            hint="a virtual machine with Linux 5.19 or newer whose / is ext4, xfs or btrfs",
        )
