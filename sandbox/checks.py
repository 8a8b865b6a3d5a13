"""What a machine needs for a sandbox, looked at before anything is started."""

import os
import shutil
import sys
from pathlib import Path

from provision.errors import SandboxError
from sandbox.hosts import PYTHON

# sshd and the like live where an ordinary user's PATH does not look.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
COMMANDS = (
    "sshd", "ssh-keygen", "ip", "unshare", "nsenter", "setpriv", "mount", "pivot_root", "mkfs.ext4", "sudo",
)  # fmt: skip


def check_machine() -> None:
    """Raises SandboxError, with what to do, when this machine cannot run a sandbox."""
    if sys.platform != "linux":
        raise SandboxError(
            f"The sandbox needs Linux, and this is {sys.platform}.",
            hint='a Linux machine or virtual machine; or cloud = "aws" in cluster.toml',
        )
    if os.geteuid() != 0:
        raise SandboxError(
            "The sandbox starts network namespaces and mounts, which needs root.", hint="sudo -E cluster ..."
        )
    extend_path()
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if not Path(PYTHON).exists():
        missing.append(PYTHON)
    if missing:
        raise SandboxError(
            f"The sandbox needs {', '.join(missing)}, which this machine does not have.", hint="make system-packages"
        )


def extend_path() -> None:
    """Puts the folders of the system's own commands on this process's PATH."""
    path = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join([*path, *(folder for folder in SBIN if folder not in path)])
