"""The objects of S3 on a node, for all of its jobs; each one is complete and verified, or does not exist at all.

    objects/KEY     an object
    incoming/KEY    an object that is being fetched, by the process that holds the lock
    users/*/        links of a live process, which holds the lock, to the objects that it uses
    lock            held briefly by a process that changes any of this

A key is derived from an object's URL, ETag and size, so an object overwritten in S3 has another key. It is also derived
from the boot of this host, because nothing is synced: after a crash of the machine, the content may be incomplete. All
locks are the kernel's and end with their process: a killed process leaves an unlocked file or folder, which the next
process removes.
"""

import contextlib
import fcntl
import hashlib
import os
import random
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping

from node.staging import s3

BOOT_ID = "/proc/sys/kernel/random/boot_id"

# An instance's own NVMe disks are faster than its root volume, and free. Deep Learning AMIs combine and mount them;
# with other AMIs, they are found among the mounts.
DLAMI_MOUNT = "/opt/dlami/nvme"
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
# The model distinguishes the two kinds: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/nvme-ebs-volumes.html
MODEL = "/sys/class/block/{}/device/model"
PARTITION = re.compile(r"^(nvme\d+n\d+)p\d+$")
FOLDER = "cluster-data"
RESERVE_SHARE, RESERVE_BYTES = 0.05, 2 << 30  # of the disk, and the minimum; never more than half of the free space
SUDO_TIMEOUT_S = 10


class Cache:
    """The staged objects in a folder. Thread-safe. most_bytes: the limit for all of them together."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        for name in ("objects", "incoming", "users"):
            _make_own(self.path(name))
        self._user = self.path("users", f"{os.getpid()}-{random.getrandbits(32):08x}")
        with self.locked():
            os.mkdir(self._user, 0o700)
            self._user_lock = os.open(self._user, os.O_RDONLY)
            fcntl.flock(self._user_lock, fcntl.LOCK_EX)
            self._clean_up()

    def close(self) -> None:
        """Releases all objects."""
        shutil.rmtree(self._user, ignore_errors=True)
        os.close(self._user_lock)

    def leave_room(self, size_bytes: int) -> None:
        """Leaves so much of the disk to others, now and later. Raises OSError if used objects do not allow it."""
        with self.locked():
            self.most_bytes = min(
                self.most_bytes, find_held(self.folder) + shutil.disk_usage(self.folder).free - size_bytes
            )
            self._make_room(0)

    def find(self, entry: s3.Entry) -> str | None:
        """Returns the path of a complete object, or None."""
        path = self.path("objects", make_key(entry))
        try:
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
        except FileNotFoundError:
            return None
        return path

    @contextlib.contextmanager
    def claimed(self, entry: s3.Entry) -> Iterator[int | None]:
        """Yields the file to write an object to, or None if it may exist, or another process fetches it.

        The file becomes the object if the block succeeds; its content must then be complete and verified. Raises
        OSError if there is no room.
        """
        key = make_key(entry)
        path, target = self.path("incoming", key), self.path("objects", key)
        with self.locked():
            is_free = not os.path.exists(target) and not self._is_locked(path)
            if is_free:
                self._make_room(entry.size_bytes)
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
                fcntl.flock(file, fcntl.LOCK_EX)
                os.ftruncate(file, entry.size_bytes)  # so that it counts towards the limit at once
        if not is_free:
            yield None
            return
        try:
            yield file
            with self.locked():
                os.rename(path, target)
        except BaseException:
            _remove(path)
            raise
        finally:
            os.close(file)

    def own_path(self, name: str) -> str:
        """A path in this process's own folder, which is removed with it."""
        return os.path.join(self._user, name)

    # -- under the lock ------------------------------------------------------------------------------------------

    def _make_room(self, size_bytes: int) -> None:
        """Evicts the objects that were used least recently until there is room. Raises OSError if there is none."""
        self._clean_up()
        excess = find_held(self.folder) + size_bytes - self.most_bytes
        with os.scandir(self.path("objects")) as entries:
            found = sorted(((entry.stat(), entry.path) for entry in entries), key=lambda one: one[0].st_atime_ns)
        for status, path in found:
            if excess > 0 and status.st_nlink == 1:  # no process has a link to it
                excess -= status.st_size
                os.unlink(path)
        if excess > 0:
            raise OSError(
                f"{self.folder} holds at most {render_size(self.most_bytes)}, and other jobs use its data: "
                "use a larger disk, or a larger [data] cache_gib"
            )

    def _clean_up(self) -> None:
        """Removes the files that killed processes left."""
        for folder in ("incoming", "users"):
            for name in os.listdir(self.path(folder)):
                path = self.path(folder, name)
                if not self._is_locked(path):
                    _remove(path)

    # -- the rest ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's lock, which excludes all other processes of this host."""
        descriptor = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _is_locked(path: str) -> bool:
        """Whether a live process holds the lock of a file or folder; False if it does not exist."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def path(self, *names: str) -> str:
        """A path in the folder."""
        return os.path.join(self.folder, *names)


def make_key(entry: s3.Entry) -> str:
    """The object's key in the cache."""
    version = f"{entry.url}\n{entry.etag}\n{entry.size_bytes}\n{_read(BOOT_ID)}"
    return hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def find_held(folder: str) -> int:
    """Returns the size of all objects in a cache's folder, in bytes."""
    paths = [os.path.join(folder, name) for name in ("objects", "incoming")]
    return sum(_size(entry) for path in paths if os.path.isdir(path) for entry in os.scandir(path))


def render_size(count: float) -> str:
    """Returns a number of bytes as text, such as "1.2 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{-(-count // 1000):.0f} kB"


def _make_own(path: str) -> None:
    """Creates a folder that only this user may write to: jobs train with its data. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"{path}: is a link or another user's, or others may write to it: set [data] cache_dir")


def _remove(path: str) -> None:
    """Removes a file or a folder."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _size(entry: "os.DirEntry[str]") -> int:
    """Returns the size of a file in bytes; 0 if it is deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return entry.stat().st_size
    return 0


def _read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


# -- the cache's folder -----------------------------------------------------------------------------------------------


def find_folder(env: Mapping[str, str], mounts: str = "/proc/mounts") -> str:
    """Returns the folder for staged data, and creates it if it is missing. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_DIR")
    if given:
        return _make_folder(os.path.expanduser(given))
    for mount in find_instance_stores(mounts)[:1]:
        with contextlib.suppress(OSError):  # the root volume always works
            return _make_folder(os.path.join(mount, FOLDER))
    return _make_folder(os.path.join(os.path.expanduser("~"), ".cluster", "data"))


def find_instance_stores(mounts: str = "/proc/mounts", model: str = MODEL) -> list[str]:
    """Returns the mount points of the instance's own disks, the one with the most free space first."""
    found = [DLAMI_MOUNT] if os.path.ismount(DLAMI_MOUNT) else []
    with open(mounts) as stream:
        for line in stream:
            device, mount_point = line.split()[:2]
            name = PARTITION.sub(r"\1", os.path.basename(device))
            try:
                is_own = _read(model.format(name)).strip() == INSTANCE_STORE
            except OSError:  # not an NVMe device
                continue
            if is_own and mount_point != "/" and mount_point not in found:
                found.append(mount_point)
    return sorted(found, key=lambda mount_point: -shutil.disk_usage(mount_point).free)


def find_limit(env: Mapping[str, str], folder: str, held_bytes: int) -> int:
    """Returns the maximum size of the folder, in bytes. held_bytes: its current size. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_GIB")
    usage = shutil.disk_usage(folder)
    if given:
        return min(int(float(given) * (1 << 30)), held_bytes + usage.free)
    reserve = min(max(usage.total * RESERVE_SHARE, RESERVE_BYTES), usage.free / 2)
    return int(held_bytes + usage.free - reserve)


def _make_folder(folder: str) -> str:
    """Creates a folder for this user only. Raises OSError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except PermissionError:  # the mount point belongs to root: create our folder in it with sudo
        words = ["sudo", "-n", "install", "-d", "-m", "700", "-o", str(os.getuid()), "-g", str(os.getgid()), folder]
        with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):  # the result is checked below
            subprocess.call(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SUDO_TIMEOUT_S)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"{folder}: staged data cannot be written there")
    return folder
