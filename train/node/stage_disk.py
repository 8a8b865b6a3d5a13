"""Where a node keeps the data that it stages: its fastest disk, and how much of it.

An instance's own NVMe disks are faster than its root volume, and free. Deep Learning AMIs put them together and mount
them; others are looked for among what is mounted.
Python 3.6 and later, standard library only.
"""

import contextlib
import os
import re
import shutil
import subprocess

DLAMI_MOUNT = "/opt/dlami/nvme"
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/nvme-ebs-volumes.html tells the two kinds apart by the model.
MODEL = "/sys/class/block/%s/device/model"
PARTITION = re.compile(r"^(nvme\d+n\d+)p\d+$")
FOLDER = "cluster-data"
RESERVE_SHARE, RESERVE_BYTES = 0.05, 2 << 30  # of the disk, and at least; never more than half of what is free
SUDO_TIMEOUT_S = 10


def find_folder(env, mounts="/proc/mounts"):
    """The folder for staged data, made if need be. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_DIR")
    if given:
        return _own(os.path.expanduser(given))
    for mount in find_instance_stores(mounts):
        try:
            return _own(os.path.join(mount, FOLDER))
        except OSError:
            continue  # the next one, and at last the root volume, which always works
    return _own(os.path.join(os.path.expanduser("~"), ".cluster", "data"))


def find_instance_stores(mounts="/proc/mounts", model=MODEL):
    """Where disks of the instance itself are mounted, the one with most room first."""
    found = [DLAMI_MOUNT] if os.path.ismount(DLAMI_MOUNT) else []
    with open(mounts) as stream:
        for line in stream:
            device, place = line.split()[:2]
            name = PARTITION.sub(r"\1", os.path.basename(device))
            try:
                with open(model % name) as told:
                    is_own = told.read().strip() == INSTANCE_STORE
            except OSError:  # no NVMe device
                continue
            if is_own and place != "/" and place not in found:
                found.append(place)
    return sorted(found, key=lambda place: -shutil.disk_usage(place).free)


def find_limit(env, folder, held_bytes):
    """How many bytes may lie in the folder, of which held_bytes do. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_GIB")
    if given:
        return int(float(given) * (1 << 30))
    usage = shutil.disk_usage(folder)
    reserve = min(max(usage.total * RESERVE_SHARE, RESERVE_BYTES), usage.free / 2)
    return int(held_bytes + usage.free - reserve)


def _own(folder):
    """A folder of this user's alone. Raises OSError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except PermissionError:  # it is root's: so that it is there for everybody, we ask for a folder in it
        words = ["sudo", "-n", "install", "-d", "-m", "700", "-o", str(os.getuid()), "-g", str(os.getgid()), folder]
        with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):  # what came of it is looked at below
            subprocess.call(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SUDO_TIMEOUT_S)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError("%s: staged data cannot be written there" % folder)
    return folder
