"""Waits, as root, until no other process installs packages: a fresh Ubuntu updates itself at its first boot.

Python 3.6 and later, standard library only.
"""

import fcntl
import os
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


def stop_upgrades(timeout_s):
    """Stops automatic updates until the next boot."""
    if os.path.isdir("/run/systemd/system"):
        for unit in UNITS:  # one by one: systemctl stops none of several units if one is not installed
            subprocess.call(["timeout", timeout_s, "systemctl", "stop", unit], stderr=subprocess.DEVNULL)


def is_free(stream):
    """Whether the lock of an open file is free."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def wait(path, timeout_s):
    """Waits until a lock is free. Exits with a message if that takes too long."""
    deadline = time.monotonic() + float(timeout_s)
    with open(path, "r+b") as stream:
        while not is_free(stream):
            if time.monotonic() > deadline:
                sys.exit("%s is still locked after %s s; who has locked it: sudo fuser -v %s" % (path, timeout_s, path))
            time.sleep(0.5)


def main():
    timeout_s = sys.argv[1]
    stop_upgrades(timeout_s)
    for path in filter(os.path.exists, sys.argv[2:] or LOCKS):
        wait(path, timeout_s)


if __name__ == "__main__":
    main()
