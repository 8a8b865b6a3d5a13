"""Starts and ends hosts. Each host is process 1 of its namespaces (pid1.py) and a child of the daemon."""

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
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts import cgroups
from ec2_sandbox.hosts.disks import make_image
from ec2_sandbox.hosts.files import HostSpec
from ec2_sandbox.hosts.namespaces import ENVIRONMENT, check, libc
from ec2_sandbox.hosts.network import CommandError, Network, run_quietly
from ec2_sandbox.hosts.system import is_machines_root
from ec2_sandbox.paths import PYTHON, SandboxPaths, wait_for_loop_devices, wait_until

PID1 = Path(__file__).with_name("pid1.py")
BOOT_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 900.0
END_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 8.0  # a little more than process 1 allows the other processes (pid1.py)
# The exit codes of a host that was shut down from inside: those of pid1.py, or the signals by which the kernel ends a
# pid namespace after reboot(2).
ENDINGS: dict[int, Literal["power-off", "reboot"]] = {
    70: "power-off", 71: "reboot", -signal.SIGINT: "power-off", -signal.SIGHUP: "reboot",
}  # fmt: skip
POLL_S = 0.01
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class BootError(Exception):
    """A host did not boot. The message becomes the instance's state reason."""


class Host:
    """A host, created by `spawn` in the main thread. `boot` and `end` may be called in any thread.

    number: that of its link. cgroup: its control group, or None.
    """

    def __init__(self, number: int, cgroup: Path | None, starter: subprocess.Popen[bytes], ready_fd: int) -> None:
        self.number = number
        self.cgroup = cgroup
        self.reboots = 0  # the instance's when the host was started
        self.boot_task: Future[None] = Future()  # these two are of the fleet's threads, which boot and end it
        self.end_task: Future[None] | None = None
        self.lost = False  # it was killed without EC2 noticing
        self.frozen = False  # its processes are stopped
        self._starter = starter
        self._ready_fd = ready_fd
        self._disk: Path | None = None
        self._first: ProcessOne | None = None
        self._ending = threading.Event()
        self._booting = threading.Lock()
        self.disks: dict[str, int] = {}  # the loop devices of attached volumes (disks.py)

    @property
    def pid(self) -> int | None:
        """The machine's pid of the host's process 1; None before it starts and after it has ended."""
        return self._first.pid if self._first and self._first.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """The host's exit code; None while it runs."""
        return self._first.poll() if self._first else self._starter.poll() or None

    @property
    def ending(self) -> Literal["power-off", "reboot"] | None:
        """How the host was shut down from inside; None while it runs, or if it ended for another reason."""
        return ENDINGS.get(self.exit_code) if self.exit_code is not None else None

    def boot(self, network: Network, spec: HostSpec, mac_address: str, addresses: tuple[str, ...]) -> None:
        """Creates the disk, connects the host and waits until its sshd answers. Raises BootError."""
        with self._booting:
            deadline = time.monotonic() + (INSTALL_TIMEOUT_S if any(Path(spec.packages).iterdir()) else BOOT_TIMEOUT_S)
            try:
                self._disk = Path(spec.disk)
                make_image(self._disk, spec.disk_bytes, Path(spec.image) if spec.image else None, is_root=True)
                if self.cgroup:
                    cgroups.make(self.cgroup, spec.first_uid or 0)
                self._send(json.dumps(asdict(spec)))
                self._wait_for_answer(deadline)
                pid = int(os.read(self._ready_fd, 32))
                self._starter.wait(END_TIMEOUT_S)
                self._first = ProcessOne(pid)  # the daemon's child, from now on
                self._send("")
                network.plug_in(self.number, self._first.pid, mac_address, addresses)
            except (OSError, ValueError, CommandError, subprocess.TimeoutExpired) as error:
                raise BootError(f"could not start the host: {error}") from error
            self._wait_for_answer(deadline)

    def _send(self, line: str) -> None:
        assert self._starter.stdin is not None  # noqa: S101 -- PIPE sets it, which mypy does not know
        self._starter.stdin.write(line.encode() + b"\n")
        self._starter.stdin.flush()

    def _wait_for_answer(self, deadline: float) -> None:
        ready = select.poll()
        ready.register(self._ready_fd, select.POLLIN)
        while not any(event & select.POLLIN for _, event in ready.poll(POLL_S * 1000)):
            self._check_boot(deadline)

    def _check_boot(self, deadline: float) -> None:
        if self._ending.wait(POLL_S):
            raise BootError("the instance ended while its host booted")
        if self.exit_code is not None:
            raise BootError(f"process 1 ended with code {self.exit_code}; see the console output")
        if time.monotonic() > deadline:
            raise BootError("the host did not boot in time; see the console output")

    def kill(self) -> None:
        """Kills every process of the host; `end` waits until they have ended.

        SIGKILL to process 1 is enough, because the kernel ends the rest of its pid namespace before it is reaped.
        """
        self._ending.set()
        self._starter.kill()
        if self._first:
            self._first.send(signal.SIGKILL)

    def shut_down(self) -> None:
        """Asks the host to shut down, as EC2 does before it stops an instance, and then ends it."""
        self._ending.set()
        if self._first:
            self._first.send(signal.SIGRTMIN + 4)  # systemd(1), "Signals"
            self._first.wait(SHUTDOWN_TIMEOUT_S)
        self.end()

    def end(self) -> None:
        """Kills the host, and waits until its processes have ended and its loop devices are released."""
        self.kill()
        self._starter.wait(END_TIMEOUT_S)
        if self._starter.stdin is not None:
            self._starter.stdin.close()
        with self._booting:
            self.kill()  # processes that started in the meantime
            if self._first and not self._first.wait(END_TIMEOUT_S):
                raise TimeoutError(f"process 1 does not end ({self._first.pid})")
            os.close(self._ready_fd)
            if self.cgroup and self.cgroup.exists():  # the boot may have failed before
                cgroups.remove(self.cgroup)
        if self._disk:
            wait_for_loop_devices(self._disk, END_TIMEOUT_S)


class ProcessOne:
    """A host's process 1, a child of the daemon. Thread-safe. The first `poll` or `wait` after its end reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Returns its exit code, negative for a signal, or None while it runs."""
        with self._lock:
            if self._code is None and (ended := os.waitpid(self.pid, os.WNOHANG)) != (0, 0):
                self._code = os.waitstatus_to_exitcode(ended[1])
            return self._code

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended, at most `timeout_s`. Returns whether it has."""
        return wait_until(lambda: self.poll() is not None, timeout_s)

    def send(self, number: int) -> None:
        """Sends it a signal unless it has ended."""
        with self._lock:
            if self._code is None:  # otherwise, its pid may be another process's
                os.kill(self.pid, number)


def adopt_hosts() -> None:
    """Makes this process the parent of each process 1 whose parent has ended (prctl(2))."""
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def spawn(paths: SandboxPaths, instance_id: str, number: int) -> Host:
    """Starts the process that creates an instance's namespaces and process 1 when `Host.boot` is called.

    Call it in the main thread: the host must end with the daemon, and the kernel sends the signal for that when the
    *thread* that started a process ends.
    """
    for name in ("volume", "stage", "root"):  # pid1.py mounts them, in its own mount namespace
        (paths.hosts_dir / instance_id / name).mkdir(parents=True, exist_ok=True)
    ready_read, ready_write = os.pipe()
    with paths.console_of(instance_id).open("ab") as console:
        starter = subprocess.Popen(
            (PYTHON, "-I", "-S", "-B", str(PID1), f"{paths.mark}:{instance_id}", str(ready_write)),
            stdin=subprocess.PIPE, stdout=console, stderr=console, start_new_session=True, cwd="/",
            env=ENVIRONMENT, pass_fds=(ready_write,),
        )  # fmt: skip
    os.close(ready_write)
    return Host(number, paths.cgroup / instance_id if paths.cgroup else None, starter, ready_read)


# --- requirements of the machine

# The folders of sshd and other commands, which are not in an ordinary user's PATH.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
COMMANDS = (
    "sshd", "ssh-keygen", "ip", "tc", "nft", "unshare", "nsenter", "setpriv", "mount", "mkfs.ext4", "sudo",
)  # fmt: skip
TRIAL_TIMEOUT_S = 30


def check_machine() -> None:
    """Raises SandboxError, with a hint, if this machine cannot run a sandbox."""
    if sys.platform != "linux":
        what = f"The sandbox needs Linux, and this is {sys.platform}."
        raise SandboxError(what, hint="a Linux machine or virtual machine")
    if os.geteuid() != 0:
        what = "The sandbox creates network namespaces and mounts, so it must be root."
        raise SandboxError(what, hint=sudo_command())
    add_sbin()
    if missing := [name for name in (*COMMANDS, PYTHON) if shutil.which(name) is None]:
        raise SandboxError(
            f"The sandbox needs {', '.join(missing)}, which this machine does not have.",
            hint="ec2-sandbox setup",
        )


def add_sbin() -> None:
    """Adds the folders in SBIN to PATH."""
    path = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join([*path, *(folder for folder in SBIN if folder not in path)])


def sudo_command() -> str:
    """Returns the command line that runs this command under sudo."""
    return shlex.join(["sudo", "-E", *sys.argv])


def check_state_folder(folder: Path) -> None:
    """Raises SandboxError if an ordinary user's hosts cannot have their disks in this folder: on an overlay."""
    words = ("findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(folder))
    if not is_machines_root() and run_quietly(words).strip() == "overlay":
        raise SandboxError(
            f"Without root, hosts have their disks in {folder}, which is on an overlay file system, as in a container. "
            "On an overlay, they cannot boot.",
            hint="a volume or tmpfs at ~/.local/state, or XDG_STATE_HOME=FOLDER with a folder on one",
        )


def check_kernel() -> None:
    """Raises SandboxError if the kernel refuses an operation that hosts need, as in most containers."""
    done = subprocess.run(
        (PYTHON, "-I", "-S", "-B", str(PID1), "try"), capture_output=True, text=True, check=False,
        timeout=TRIAL_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise SandboxError(
            f"This machine does not let root create the namespaces and mounts of a host: {reason}",
            hint="a virtual machine with Linux 5.19 or newer whose / is ext4, xfs or btrfs",
        )
