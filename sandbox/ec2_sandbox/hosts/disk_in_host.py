"""Adds the device of a disk to a running host, or removes it: disk_in_host.py add|remove PID NODE VOLUME.

The daemon starts it as the machine's root, and it enters the host's mount namespace. PID: the host's process 1. NODE:
the device node on the machine. Imports only the standard library; Python 3.10 or later, like pid1.py.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # which -I omits

from ec2_sandbox.hosts.namespaces import CLONE_NEWNS, MNT_DETACH, check, libc, move_mount, open_tree

BY_ID = Path("/dev/disk/by-id")


def main() -> None:
    """Adds or removes the device that the command line names."""
    verb, pid, node, volume_id = sys.argv[1:]
    tree = open_tree(Path(node)) if verb == "add" else -1
    with Path(f"/proc/{pid}/ns/mnt").open("rb") as namespace:
        check(libc.setns(namespace.fileno(), CLONE_NEWNS), "setns")
    link = BY_ID / f"nvme-Amazon_Elastic_Block_Store_{volume_id.replace('-', '')}"
    if verb == "add":
        add(tree, link)
    elif link.is_symlink():
        device = link.resolve()
        check(libc.umount2(os.fsencode(device), MNT_DETACH), f"umount {device}")
        with hosts_root():
            device.unlink()
            link.unlink()


def add(tree: int, link: Path) -> None:
    """Mounts the device at the first free name, and links to it by the volume's id, as udev does on EC2."""
    if link.is_symlink():
        return
    names = (Path(f"/dev/nvme{number}n1") for number in itertools.count(1))
    device = next(name for name in names if not name.exists())
    with hosts_root():
        device.touch()
        BY_ID.mkdir(parents=True, exist_ok=True)
    move_mount(tree, device)
    with hosts_root():
        link.symlink_to(f"../../{device.name}")


@contextmanager
def hosts_root() -> Iterator[None]:
    """Within the block, new files belong to the host's root, because the machine's root is not a user of the host."""
    owner = Path("/dev").stat()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


if __name__ == "__main__":
    main()
