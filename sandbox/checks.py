"""What a machine needs for a sandbox, looked at before anything is started."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from provision.errors import SandboxError
from sandbox.hosts import PYTHON

# sshd and the like live where an ordinary user's PATH does not look.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
COMMANDS = (
    "sshd", "ssh-keygen", "ip", "tc", "nft", "unshare", "nsenter", "setpriv", "mount", "pivot_root", "mkfs.ext4",
    "sudo",
)  # fmt: skip
# In namespaces of its own, all that a sandbox does with the kernel, once; nothing of it is left when it ends.
TRIAL = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
ip link add one type veth peer name two
nft 'table inet one { chain two { type filter hook forward priority 0; ct state established accept; }; }'
"""
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
            "The sandbox makes network namespaces and mounts, for which it must be root.",
            hint=sudo_command(),
        )
    _extend_path()
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if not Path(PYTHON).exists():
        missing.append(PYTHON)
    if missing:
        raise SandboxError(
            f"The sandbox needs {', '.join(missing)}, which this machine does not have.",
            hint=shlex.join(["bash", str(Path(__file__).with_name("system-packages"))]),
        )


def sudo_command() -> str:
    """This command with root's rights for the sandbox."""
    return shlex.join(["sudo", "-E", *sys.argv])


def check_kernel() -> None:
    """Raises SandboxError when the kernel refuses what hosts are made of, as it does in most containers."""
    done = subprocess.run(
        ("unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child", "sh", "-ec", TRIAL),
        capture_output=True,
        text=True,
        check=False,
        timeout=TRIAL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise SandboxError(
            f"This machine does not let root make what the sandbox's hosts consist of: {done.stderr.strip()}",
            hint="a virtual machine, or a container with full privileges (--privileged)",
        )


def _extend_path() -> None:
    path = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join([*path, *(folder for folder in SBIN if folder not in path)])
