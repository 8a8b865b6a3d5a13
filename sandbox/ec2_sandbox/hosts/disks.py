"""The disks of hosts: root volumes, and EBS volumes that are attached. Each is a sparse image file on the machine.

The fleet calls `attach_disk` and `detach_disk` in the main thread, under EC2's lock, and repeats them until they
succeed: for each attached volume after each boot of its instance's host, and for each volume to detach.

A disk is a loop device, which the kernel releases when neither the daemon nor a process of the host has it open. A host
cannot create a device node that works, so disk_in_host.py adds one from outside.
"""

import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ec2_sandbox.hosts.network import CommandError, run_quietly
from ec2_sandbox.paths import PYTHON

if TYPE_CHECKING:
    from ec2_sandbox.hosts.hosts import Host

HELPER = Path(__file__).with_name("disk_in_host.py")


def attach_disk(host: "Host", volume_id: str, image: Path, size_bytes: int) -> bool:
    """Adds a volume's disk to a running host, unless the host already has it. Returns True.

    image: the disk's image on the machine. It is created, blank, if the volume has never been attached.
    Raises OSError, CommandError.
    """
    if volume_id in host.disks:
        return True
    make_image(image, size_bytes)
    device = open_loop(image)
    try:
        node = image.with_suffix(".device")
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFBLK, os.fstat(device).st_rdev)
        node.chmod(0o666)  # the host's root is an ordinary user of the machine
        run_quietly((PYTHON, "-I", "-S", "-B", str(HELPER), "add", str(host.pid), str(node), volume_id))
    except (OSError, CommandError):
        os.close(device)
        raise
    host.disks[volume_id] = device
    return True


def detach_disk(host: "Host", volume_id: str) -> bool:
    """Removes a volume's disk from a host, and closes it. Does nothing if the host does not have the disk.

    Returns False while the host uses the disk: EC2 then shows the attachment as `busy`, and detaches the volume once it
    is unmounted. Raises OSError, CommandError.
    """
    device = host.disks.get(volume_id)
    if device is None:
        return True
    if host.pid is not None:
        if is_open(os.fstat(device).st_rdev):
            return False
        run_quietly((PYTHON, "-I", "-S", "-B", str(HELPER), "remove", str(host.pid), "-", volume_id))
    os.close(host.disks.pop(volume_id))
    return True


def open_loop(image: Path) -> int:
    """Opens a new loop device for an image. The device exists as long as any process has it open.

    Raises OSError, or CommandError on a machine without loop devices.
    """
    name = run_quietly(("losetup", "--find", "--show", str(image))).strip()
    device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    run_quietly(("losetup", "--detach", name))  # as soon as it is closed
    return device


def is_open(number: int) -> bool:
    """Returns whether another process has a block device open. number: the device's st_rdev."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found = descriptor.stat()
        except OSError:  # the process has ended, or the descriptor is not a file
            continue
        if stat.S_ISBLK(found.st_mode) and found.st_rdev == number and descriptor.parts[2] != str(os.getpid()):
            return True
    return False


def make_image(image: Path, size_bytes: int, source: Path | None = None, *, is_root: bool = False) -> None:
    """Creates the image of a disk, unless it exists. Raises CommandError, OSError.

    source: the image of which it is a copy, which may be larger; None for a blank one. is_root: with a file system.
    """
    if image.exists():
        return
    image.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = image.with_suffix(".new")
    if source is None:
        fresh.write_bytes(b"")
    else:
        run_quietly(("cp", "--sparse=always", "--reflink=auto", str(source), str(fresh)))
    with fresh.open("ab") as file:
        file.truncate(max(size_bytes, file.tell()))
    if is_root:
        _fit_file_system(fresh, is_new=source is None)
    fresh.rename(image)


def _fit_file_system(image: Path, *, is_new: bool) -> None:
    if is_new:
        # Without a journal, because hosts do not survive the machine.
        run_quietly(("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal",
                     "-E", "lazy_itable_init=1,nodiscard", str(image)))  # fmt: skip
    else:
        # resize2fs wants it; its code is 1 if it has made lost+found again.
        subprocess.run(("e2fsck", "-f", "-p", str(image)), check=False, capture_output=True)
        run_quietly(("resize2fs", str(image)))
