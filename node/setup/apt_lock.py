"""Waits, as root, until no other process installs packages: a fresh Ubuntu updates itself at its first boot.

Python 3.6 and later, standard library only.
"""

import fcntl
import os
import struct
import subprocess
import sys
import time

LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock")
# Timers first, then the services that may be running; apt-daily-upgrade ends after its current package.
UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "unattended-upgrades.service",
)
REPORT_EVERY_S = 15
FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid


def find_holder(path):
    """The pid of the process that holds a lock (0 if it is not visible from here); None if the lock is free."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        wanted = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, wanted))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else pid


def name_of(pid):
    """The description of a process in messages."""
    try:
        with open("/proc/%d/comm" % pid) as stream:
            return "%s, process %d" % (stream.read().strip(), pid)
    except OSError:
        return "process %d" % pid


def stop_upgrades(timeout_s):
    """Stops automatic updates until the next boot."""
    if not os.path.isdir("/run/systemd/system"):
        return
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for unit in UNITS:  # one by one: systemctl stops none of several units if one is not installed
        try:
            subprocess.call(["systemctl", "stop", unit], timeout=timeout_s, **quiet)
        except subprocess.TimeoutExpired:
            print("%s has not stopped within %d s" % (unit, timeout_s), flush=True)


def wait(locks, timeout_s):
    """Waits until the locks are free. Returns whether that was in time. Reports the process that holds one."""
    deadline = time.monotonic() + timeout_s
    reported_at = None
    while True:
        holders = [(path, find_holder(path)) for path in locks]
        held = [(path, pid) for path, pid in holders if pid is not None]
        if not held:
            return True
        path, pid = held[0]
        if time.monotonic() > deadline:
            print("%s has been locked for %d s by %s" % (path, timeout_s, name_of(pid)), flush=True)
            return False
        if reported_at is None or time.monotonic() > reported_at + REPORT_EVERY_S:
            reported_at = time.monotonic()
            print("waiting for %s, which has locked %s" % (name_of(pid), path), flush=True)
        time.sleep(0.5)


def main():
    timeout_s = float(sys.argv[1])
    stop_upgrades(timeout_s)
    sys.exit(0 if wait(sys.argv[2:] or LOCKS, timeout_s) else 1)


if __name__ == "__main__":
    main()
