"""Process 1 of a sandbox host: builds the host's file system, starts sshd, and then reaps processes.

The daemon starts it as `/usr/bin/python3 -I -S -B pid1.py MARK READY_FD`. This process runs as the machine's root. It
mounts the host's disk, creates namespaces whose root is an ordinary user of the machine, and forks process 1 in them
(namespaces.py). Imports only the standard library; Python 3.10 or later, because the machine's own Python runs it. The
host may not see the virtual environment.

The first line of standard input is the host's description (`HostSpec` in files.py). The daemon keeps standard input
open as long as it runs, and the host ends when it closes. Standard output is the console. READY_FD receives the pid of
process 1, and one byte when the network is up and sshd answers.

All mounts are in the host's own mount namespace, and the disk is a loop device that detaches itself. So the kernel
removes everything when the last process of the host ends, for whatever reason.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).parents[2]))  # which -I omits

from ec2_sandbox.hosts.namespaces import (
    ENVIRONMENT,
    PACKAGES,
    await_built,
    build_root,
    end_with_parent,
    enter_namespaces,
    log_to_console,
    open_users,
    start_building,
    try_kernel,
)

SSHD = ("/usr/sbin/sshd", "-D", "-E", "/var/log/auth.log", "-f", "/etc/ssh/sshd_config")
INSTALL_PACKAGES = "/usr/lib/ec2-sandbox/install-packages"
SSHD_RESTART_S = 0.1  # as in Ubuntu's ssh.service: Restart=on-failure, RestartSec=100ms
SSHD_TIMEOUT_S = 10.0
SSH_PORT = 22
NETWORK_TIMEOUT_S = 20.0
# Remaining processes are then killed. Like systemd's DefaultTimeoutStopSec, but shorter.
SHUTDOWN_S = 5.0
# systemd(1), "Signals". The exit codes tell the daemon what to do with the instance (hosts.py).
POWER_OFF, REBOOT = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
POWERED_OFF_CODE, REBOOT_CODE = 70, 71
SHUTDOWNS = {POWER_OFF: ("power down", POWERED_OFF_CODE), REBOOT: ("restarting system", REBOOT_CODE)}


def hand_over(first: int, builder: int, ready_fd: int) -> NoReturn:
    """Reports process 1's pid to the daemon and ends, so that process 1 becomes the daemon's own child."""
    os.write(ready_fd, f"{first}\n".encode())
    os.waitpid(builder, 0)
    os._exit(0)


def read_line() -> bytes:
    """Reads a line from the daemon on standard input: first the host's description, later an empty line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit("the daemon ended before the host had booted")
        line += chunk
    return bytes(line)


def boot(spec: dict[str, Any]) -> None:
    """Prepares everything that sshd needs."""
    first_boot = build_root(spec)
    socket.sethostname(spec["hostname"])
    if first_boot:
        make_host_keys()
    configure_network(spec["network"])
    print_host_keys()
    if first_boot:
        install_packages()


def configure_network(commands: str) -> None:
    """Waits until the daemon has added eth0, and sets it up with `ip -batch`."""
    deadline = time.monotonic() + NETWORK_TIMEOUT_S
    while not Path("/sys/class/net/eth0").exists():
        if time.monotonic() > deadline:
            sys.exit(f"eth0 did not appear within {NETWORK_TIMEOUT_S:.0f} s")
        time.sleep(0.005)
    subprocess.run(("ip", "-batch", "-"), input=commands, text=True, check=True, env=ENVIRONMENT)


def make_host_keys() -> None:
    """Generates the SSH host keys, in place of those of an image."""
    for kind in ("ed25519", "ecdsa"):
        path = f"/etc/ssh/ssh_host_{kind}_key"
        Path(path).unlink(missing_ok=True)
        subprocess.run(("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{socket.gethostname()}", "-f", path),
                       check=True, env=ENVIRONMENT)  # fmt: skip


def print_host_keys() -> None:
    """Writes the host keys to the console, as cloud-init does at every boot, so that clients can verify them."""
    publics = sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    for name, command in (("FINGERPRINTS", ("ssh-keygen", "-l", "-f")), ("KEYS", ("cat",))):
        os.write(1, f"-----BEGIN SSH HOST KEY {name}-----\n".encode())
        for public in publics:
            subprocess.run((*command, str(public)), check=True, env=ENVIRONMENT)
        os.write(1, f"-----END SSH HOST KEY {name}-----\n".encode())


def install_packages() -> None:
    """Installs the packages of `ec2-sandbox install`. dpkg's output goes to the console."""
    for folder in sorted(Path("/", PACKAGES).glob("[0-9]*")):
        done = subprocess.run((INSTALL_PACKAGES, str(folder)), check=False, env=ENVIRONMENT)
        if done.returncode != 0:
            sys.exit(f"could not install the packages of ec2-sandbox install: dpkg ended with {done.returncode}")


def start_sshd() -> int:
    """Starts sshd in its own session. Returns its pid when sshd answers, or after SSHD_TIMEOUT_S."""
    null = os.open("/dev/null", os.O_RDWR)
    pid = os.posix_spawn(
        SSHD[0], SSHD, ENVIRONMENT, setsid=True,
        file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)],
    )  # fmt: skip
    os.close(null)
    deadline = time.monotonic() + SSHD_TIMEOUT_S
    while not sshd_answers() and time.monotonic() < deadline:
        time.sleep(0.005)
    return pid


def sshd_answers() -> bool:
    """Returns whether sshd accepts connections from inside the host, where security groups do not apply."""
    try:
        with socket.create_connection(("127.0.0.1", SSH_PORT), timeout=1.0):
            return True
    except OSError:
        return False


def stay(spec: dict[str, Any], ready_fd: int) -> NoReturn:
    """Reaps processes and restarts sshd. Ends the host on a signal, or when the daemon has ended."""
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write)
    for number in (signal.SIGCHLD, POWER_OFF, REBOOT):
        signal.signal(number, lambda *_: None)
    sshd = start_sshd() if spec["sshd"] else None
    os.write(ready_fd, b"+")
    os.close(ready_fd)
    if spec["after_boot"]:
        os.posix_spawn(spec["after_boot"][0], spec["after_boot"], ENVIRONMENT, setsid=True)
    while True:
        ready, _, _ = select.select([0, wakeup_read], [], [])
        if 0 in ready and not os.read(0, 4096):
            sys.exit(0)
        arrived = os.read(wakeup_read, 4096) if wakeup_read in ready else b""
        for number, (what, code) in SHUTDOWNS.items():
            if number in arrived:
                shut_down(what, code)
        if sshd in reap():
            log_to_console("sshd ended: starting it again")
            time.sleep(SSHD_RESTART_S)
            sshd = start_sshd()


def shut_down(what: str, code: int) -> NoReturn:
    """Ends all processes, first with SIGTERM, and then exits with `code`."""
    log_to_console(f"{what}: sending SIGTERM to all processes")
    deadline = time.monotonic() + SHUTDOWN_S
    _kill_all(signal.SIGTERM)
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    _kill_all(signal.SIGKILL)
    log_to_console(what)
    os._exit(code)


def _kill_all(number: int) -> None:
    """Sends a signal to all other processes of the host."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def _has_children() -> bool:
    reap()
    return bool(Path("/proc/1/task/1/children").read_text().strip())


def reap() -> list[int]:
    """Reaps all children that have ended, including adopted ones. Returns their pids."""
    ended: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


def main() -> NoReturn:
    """Creates the host's namespaces, boots the host in them, and runs as process 1."""
    ready_fd = int(sys.argv[2])
    os.set_inheritable(ready_fd, False)  # noqa: FBT003 -- a positional-only parameter
    end_with_parent()
    spec = json.loads(read_line())
    log_to_console(f"{spec['instance_id']}: booting {spec['hostname']}")
    builder, built = start_building(spec)
    first = enter_namespaces(open_users(spec), spec["cgroup"], spec["outer_cgroup"])
    if first:
        hand_over(first, builder, ready_fd)
    read_line()  # the daemon is the parent now. If it ends before the next line, `stay` detects that
    end_with_parent()
    await_built(built)
    boot(spec)
    log_to_console(f"{spec['hostname']} login: sshd starts")
    stay(spec, ready_fd)


if __name__ == "__main__":
    if sys.argv[1:] == ["try"]:
        try_kernel()
    else:
        main()
