"""Process 1 of a sandbox host: builds the host's file system, starts sshd, reaps, and stays.

Started by the daemon as `/usr/bin/python3 -I -S -B pid1.py MARK READY_FD` inside new mount, pid, uts, ipc and network
namespaces. Standard library only and Python >= 3.10, because it is the machine's own Python that runs it: the one of
the virtual environment may live in a folder that the host does not see.

The first line of standard input is the host's description (`HostSpec.render` in host_files.py); after that it stays
open for as long as the daemon lives, and its end is the host's end. Standard output is the console. On the descriptor
READY_FD one byte is written when the network is up and sshd answers.

Everything is mounted in the host's own mount namespace, and the disk is a loop device that detaches itself:
when the last process of the host dies, by whatever cause, the kernel takes all of it away.
"""

import ctypes
import errno
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

# Started by path and isolated, so that nothing else of the user's Python comes along; needs its neighbour all the same.
sys.path.insert(0, str(Path(__file__).parent.parent))

from sandbox.host_root import ENVIRONMENT, build_root, libc, say

PR_CAPBSET_DROP = 24
# Root in a host may do as it likes to the host, and nothing to the machine's clock, kernel modules or block devices.
# linux/capability.h: SYS_MODULE, SYS_RAWIO, SYS_TIME, MKNOD, MAC_OVERRIDE, MAC_ADMIN, SYSLOG, WAKE_ALARM
DROPPED_CAPABILITIES = (16, 17, 25, 27, 32, 33, 34, 35)
SSHD = ("/usr/sbin/sshd", "-D", "-E", "/var/log/auth.log", "-f", "/etc/ssh/sshd_config")
SSHD_RESTART_S = 0.1  # as Ubuntu's ssh.service: Restart=on-failure, RestartSec=100ms
SSHD_TIMEOUT_S = 10.0
SSH_PORT = 22
NETWORK_TIMEOUT_S = 20.0
# Then what has not ended by itself is killed; as systemd's DefaultTimeoutStopSec, but for an impatient machine.
SHUTDOWN_S = 5.0
# systemd(1), "Signals". The codes tell the daemon what to do with the instance (hosts.py).
POWER_OFF, REBOOT = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
POWERED_OFF_CODE, REBOOT_CODE = 70, 71
SHUTDOWNS = {POWER_OFF: ("power down", POWERED_OFF_CODE), REBOOT: ("restarting system", REBOOT_CODE)}


def read_spec() -> dict[str, Any]:
    """The host's description: the first line of standard input, after which nothing follows but its end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit("the daemon went away before the host was described")
        line += chunk
    spec: dict[str, Any] = json.loads(line)
    return spec


def configure_network(commands: str) -> None:
    """Waits for the daemon to plug eth0 in, then sets it up with `ip -batch`."""
    deadline = time.monotonic() + NETWORK_TIMEOUT_S
    while not Path("/sys/class/net/eth0").exists():
        if time.monotonic() > deadline:
            sys.exit(f"eth0 did not appear within {NETWORK_TIMEOUT_S:.0f} s")
        time.sleep(0.005)
    subprocess.run(("ip", "-batch", "-"), input=commands, text=True, check=True, env=ENVIRONMENT)


def make_host_keys() -> None:
    """Fresh host keys, and their fingerprints on the console between the same lines as cloud-init's."""
    for kind in ("ed25519", "ecdsa"):
        path = f"/etc/ssh/ssh_host_{kind}_key"
        subprocess.run(("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{socket.gethostname()}", "-f", path),
                       check=True, env=ENVIRONMENT)  # fmt: skip


def print_host_keys() -> None:
    """What cloud-init writes to the console at every boot, so that a client can compare before it trusts."""
    publics = sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    for name, show in (("FINGERPRINTS", ("ssh-keygen", "-l", "-f")), ("KEYS", ("cat",))):
        os.write(1, f"-----BEGIN SSH HOST KEY {name}-----\n".encode())
        for public in publics:
            subprocess.run((*show, str(public)), check=True, env=ENVIRONMENT)
        os.write(1, f"-----END SSH HOST KEY {name}-----\n".encode())


def log_in(user: str) -> None:
    """Makes `logname` say who it is in every session, which is PAM's to do where sshd uses it.

    Some kernels have no audit, and some let nobody but the machine's own root set it: then nobody has a login name.
    """
    try:
        Path("/proc/self/loginuid").write_text(str(pwd.getpwnam(user).pw_uid))
    except OSError as error:
        say(f"no login name: {error}")


def drop_capabilities() -> None:
    """Takes from all that is started from here on what would reach the machine."""
    for capability in DROPPED_CAPABILITIES:
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"cannot drop capability {capability}")


def start_sshd() -> int:
    """Sshd in a session of its own; its pid, when it answers."""
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
    """Whether it takes connections; asked from inside, where no security group stands in the way."""
    try:
        with socket.create_connection(("127.0.0.1", SSH_PORT), timeout=1.0):
            return True
    except OSError:
        return False


def stay(spec: dict[str, Any], ready_fd: int) -> NoReturn:
    """Reaps what dies, starts sshd again when it does, and ends the host when it is told to or the daemon is gone."""
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
            say("sshd ended: starting it again")
            time.sleep(SSHD_RESTART_S)
            sshd = start_sshd()


def shut_down(what: str, code: int) -> NoReturn:
    """Ends every process, with time to do so by themselves, and then this one; the daemon knows `code`."""
    say(f"{what}: sending SIGTERM to all processes")
    deadline = time.monotonic() + SHUTDOWN_S
    _kill_all(signal.SIGTERM)
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    _kill_all(signal.SIGKILL)
    say(what)
    os._exit(code)


def _kill_all(number: int) -> None:
    """A signal to all processes of the host but this one."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def _has_children() -> bool:
    reap()
    return bool(Path("/proc/1/task/1/children").read_text().strip())


def reap() -> list[int]:
    """The pids of all children, adopted ones too, that have ended since the last time."""
    ended: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


def boot(spec: dict[str, Any]) -> None:
    """From a bare namespace to a host that is ready for sshd."""
    first_boot = build_root(spec)
    socket.sethostname(spec["hostname"])
    if first_boot:
        make_host_keys()
    configure_network(spec["network"])
    print_host_keys()


def main() -> NoReturn:
    """Boots the host and stays."""
    ready_fd = int(sys.argv[2])
    os.set_inheritable(ready_fd, False)  # noqa: FBT003 -- takes it by position only
    spec = read_spec()
    say(f"{spec['instance_id']}: booting {spec['hostname']}")
    boot(spec)
    log_in("ubuntu")
    drop_capabilities()
    say(f"{spec['hostname']} login: sshd starts")
    stay(spec, ready_fd)


if __name__ == "__main__":
    main()
