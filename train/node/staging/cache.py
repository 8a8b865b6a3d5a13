"""The staged objects of a node, for all of its jobs: whole and verified, or not there at all.

    objects/KEY/NAME, meta      an object of S3, and its size, CRC-32 and the boot in which that was last compared
    incoming/KEY/               one that is being fetched, by who holds its lock
    users/*/                    of a live process, who holds its lock: `keys`, that it uses, files that stand for
                                objects of which it does not read a byte, and files that are not in S3 yet
    lock                        held for moments, by who changes any of this

A key stands for an object's URL, ETag and size: what is overwritten in S3 is another object. All locks are the
kernel's and end with their process: what a killed one has left is known by that, and removed by the next.
"""

from __future__ import annotations

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
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from train.node import integrity, s3
from train.node.staging import plan

META, KEYS = "meta", "keys"
PIECE_BYTES = 1 << 20
WAIT_S = 0.1
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# What MXNet's readers do not take for a list, a cache file or options.
PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]")
NAME_LENGTH = 100

# An instance's own NVMe disks are faster than its root volume, and free. Deep Learning AMIs put them together and mount
# them; others are looked for among what is mounted.
DLAMI_MOUNT = "/opt/dlami/nvme"
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/nvme-ebs-volumes.html tells the two kinds apart by the model.
MODEL = "/sys/class/block/{}/device/model"
PARTITION = re.compile(r"^(nvme\d+n\d+)p\d+$")
FOLDER = "cluster-data"
RESERVE_SHARE, RESERVE_BYTES = 0.05, 2 << 30  # of the disk, and at least; never more than half of what is free
SUDO_TIMEOUT_S = 10


class NoRoom(OSError):
    """The cache holds no more; says why."""


class Meta(msgspec.Struct, frozen=True):
    """What is known of an object. boot: in which its content was last compared with crc32."""

    url: str
    crc32: int
    boot: str


class Cache:
    """The staged objects in a folder, for any thread; most_bytes: of all of them together."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.boot = _read(BOOT_ID).strip()
        self.slots: set[Slot] = set()
        for name in ("objects", "incoming", "users"):
            _make_own(self.path(name))
        self._user = self.path("users", f"{os.getpid()}-{_random_digits()}")
        with self.locked():
            os.mkdir(self._user, 0o700)
            self._user_lock = _lock_folder(self._user)
            self._clean_up()

    def close(self) -> None:
        """Use nothing any more, and leave nothing half done."""
        for slot in list(self.slots):
            slot.close()
        shutil.rmtree(self._user, ignore_errors=True)
        os.close(self._user_lock)

    def use(self, entries: Iterable[s3.Entry]) -> None:
        """Keep these, from when they are there. Raises NoRoom where they cannot be, all together."""
        needed = sum(entry.size_bytes for entry in {make_key(entry): entry for entry in entries}.values())
        if needed > self.most_bytes:
            raise NoRoom(
                f"{render_size(needed)} have to be staged, and {self.folder} holds {render_size(self.most_bytes)} at "
                "most: more nodes, a larger volume, or [data] cache_gib"
            )
        with self.locked(), open(os.path.join(self._user, KEYS), "a") as stream:
            stream.write("".join(make_key(entry) + "\n" for entry in entries))

    def find(self, entry: s3.Entry) -> str | None:
        """The path of an object that is here, whole; else None. Reads it once after each boot of this node."""
        key = make_key(entry)
        path = self.path("objects", key, make_name(entry.url))
        try:
            meta = msgspec.json.decode(_read(self.path("objects", key, META)), type=Meta)
            size = os.stat(path).st_size
        except (FileNotFoundError, ValueError):  # ValueError: it was written as the machine went down
            self._discard(key)
            return None
        # Nothing is synced: what a machine that went down has kept of it is not known.
        stale = meta.boot != self.boot
        if size != entry.size_bytes or (stale and compare(path)[1] != meta.crc32):
            self._discard(key)
            return None
        if stale:
            self.write_meta(self.path("objects", key), Meta(url=entry.url, crc32=meta.crc32, boot=self.boot))
        os.utime(self.path("objects", key))
        return path

    def claim(self, entry: s3.Entry, should_stop: Callable[[], bool]) -> Slot | None:
        """A Slot to fetch an object into; None when it may be here by now. Waits while another one fetches it.

        should_stop: is asked now and then, and ends the waiting. Raises NoRoom.
        """
        while not should_stop():
            with self.locked():
                key = make_key(entry)
                if os.path.isdir(self.path("objects", key)):
                    return None
                folder = self.path("incoming", key)
                if not self._is_locked(folder) and self._make_room(entry.size_bytes):
                    os.mkdir(folder, 0o700)
                    slot = Slot(self, entry, folder)
                    self.slots.add(slot)
                    return slot
            time.sleep(WAIT_S)
        return None

    def find_hole(self, size_bytes: int) -> str:
        """A file of that size which nobody may read, but root: its content is not there."""
        path = os.path.join(self._user, str(size_bytes))
        if not os.path.exists(path):
            with open(path, "w") as stream:
                os.ftruncate(stream.fileno(), size_bytes)
            os.chmod(path, 0)
        return path

    def find_draft(self, url: str) -> str:
        """A path for the content of an object that is not in S3 yet. Raises ValueError for what names no object."""
        s3.split_object_url(url)
        return os.path.join(self._user, f"draft-{_random_digits()}-{make_name(url)}")

    # -- under the lock ------------------------------------------------------------------------------------------

    def _make_room(self, size_bytes: int) -> bool:
        """Whether there is room now, or will be once what nobody has asked for yet has come. Raises NoRoom."""
        self._clean_up()
        used = self._used_keys()
        coming = os.listdir(self.path("incoming"))
        kept = [self._describe("incoming", key, stays=True) for key in coming]
        kept += [self._describe("objects", key, stays=key in used) for key in os.listdir(self.path("objects"))]
        leaving = plan.choose_leaving(kept, size_bytes, self.most_bytes)
        for key in leaving or ():
            self._remove(key)
        if leaving is None and used.issuperset(coming):
            raise NoRoom(
                f"{self.folder} holds {render_size(self.most_bytes)} at most, and no more can go: its data is in use; "
                "a larger volume, or [data] cache_gib"
            )
        return leaving is not None

    def _describe(self, place: str, key: str, *, stays: bool) -> plan.Kept:
        path = self.path(place, key)
        return plan.Kept(os.stat(path).st_mtime, _size(path), key, stays)

    def _clean_up(self) -> None:
        """Remove what killed processes have left."""
        for place in ("incoming", "users"):
            for name in os.listdir(self.path(place)):
                path = self.path(place, name)
                if not self._is_locked(path):
                    shutil.rmtree(path, ignore_errors=True)

    def _used_keys(self) -> set[str]:
        """The keys in use; those of dead processes are gone by then."""
        users = [self.path("users", name, KEYS) for name in os.listdir(self.path("users"))]
        return {key for user in users if os.path.exists(user) for key in _read(user).split()}

    def _remove(self, key: str) -> None:
        gone = self.path("incoming", f"{key}.{_random_digits()}")
        os.rename(self.path("objects", key), gone)  # at once, and then file by file
        shutil.rmtree(gone, ignore_errors=True)

    # -- the rest ------------------------------------------------------------------------------------------------

    def _discard(self, key: str) -> None:
        with self.locked():
            if os.path.isdir(self.path("objects", key)):
                self._remove(key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the folder, among all processes of this host."""
        descriptor = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _is_locked(path: str) -> bool:
        """Whether a live process holds a file's or a folder's lock; one that is not there has none."""
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

    @staticmethod
    def write_meta(folder: str, meta: Meta) -> None:
        """Put what is known of an object beside it, at once."""
        temporary = os.path.join(folder, f"{META}.{_random_digits()}")
        with open(temporary, "wb") as stream:
            stream.write(msgspec.json.encode(meta))
        os.rename(temporary, os.path.join(folder, META))

    def path(self, *names: str) -> str:
        """A path in the folder."""
        return os.path.join(self.folder, *names)


class Slot:
    """The place of an object that is being fetched, nobody else's until it is closed."""

    def __init__(self, cache: Cache, entry: s3.Entry, folder: str) -> None:
        self._cache = cache
        self._entry = entry
        self._folder = folder
        self.path = os.path.join(folder, make_name(entry.url))
        self._published = False
        self._lock = _lock_folder(folder)
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
        os.ftruncate(self.file, entry.size_bytes)  # it counts at once

    def publish(self, crc32: int) -> None:
        """Let it be seen, now that all of it is there and right."""
        self._cache.write_meta(self._folder, Meta(url=self._entry.url, crc32=crc32, boot=self._cache.boot))
        with self._cache.locked():
            os.rename(self._folder, self._cache.path("objects", make_key(self._entry)))
        self._published = True

    def close(self) -> None:
        """Give the place up; what was not published is removed."""
        if self not in self._cache.slots:
            return
        self._cache.slots.discard(self)
        os.close(self.file)
        if not self._published:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def make_key(entry: s3.Entry) -> str:
    """What an object is known by here."""
    told = f"{entry.url}\n{entry.etag}\n{entry.size_bytes}"
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def make_name(url: str) -> str:
    """The name of an object's file: the end of its URL, as MXNet's readers can take it."""
    name = PLAIN_NAME.sub("_", url.rpartition("/")[2])[-NAME_LENGTH:]
    return "data" if name in ("", ".", "..") or name.partition(".")[0] == META else name


def compare(path: str, check: integrity.Check | None = None) -> tuple[bool, int]:
    """(whether a file is what `check` says, its CRC-32), in one reading. check: None for what cannot be compared."""
    crc = 0
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(PIECE_BYTES), b""):
            crc = zlib.crc32(piece, crc)
            if check is not None:
                check.feed(piece)
    return check is None or check.matches(), crc


def find_held(folder: str) -> int:
    """The bytes of all that lies in a cache's folder already."""
    places = [os.path.join(folder, name) for name in ("objects", "incoming")]
    return sum(_size(os.path.join(place, key)) for place in places if os.path.isdir(place) for key in os.listdir(place))


def render_size(count: float) -> str:
    """Bytes for a reader: "1.2 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{-(-count // 1000):.0f} kB"


def _make_own(path: str) -> None:
    """Make a folder that nobody else may write to: what lies there is trained with. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"{path}: it is a link or another user's, or others may write to it: set [data] cache_dir")


def _lock_folder(path: str) -> int:
    """Hold a folder's lock for as long as the descriptor that this returns is open."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _size(folder: str) -> int:
    """The bytes of an object's folder, but for what is just going."""
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(folder):
            if entry.name.partition(".")[0] != META:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
    return total


def _random_digits() -> str:
    return f"{random.getrandbits(32):08x}"


def _read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


# -- where the cache is -----------------------------------------------------------------------------------------------


def find_folder(env: Mapping[str, str], mounts: str = "/proc/mounts") -> str:
    """The folder for staged data, made if need be. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_DIR")
    if given:
        return _make_folder(os.path.expanduser(given))
    for mount in find_instance_stores(mounts):
        try:
            return _make_folder(os.path.join(mount, FOLDER))
        except OSError:
            continue  # the next one, and at last the root volume, which always works
    return _make_folder(os.path.join(os.path.expanduser("~"), ".cluster", "data"))


def find_instance_stores(mounts: str = "/proc/mounts", model: str = MODEL) -> list[str]:
    """Where disks of the instance itself are mounted, the one with most room first."""
    found = [DLAMI_MOUNT] if os.path.ismount(DLAMI_MOUNT) else []
    with open(mounts) as stream:
        for line in stream:
            device, place = line.split()[:2]
            name = PARTITION.sub(r"\1", os.path.basename(device))
            try:
                with open(model.format(name)) as told:
                    is_own = told.read().strip() == INSTANCE_STORE
            except OSError:  # no NVMe device
                continue
            if is_own and place != "/" and place not in found:
                found.append(place)
    return sorted(found, key=lambda place: -shutil.disk_usage(place).free)


def find_limit(env: Mapping[str, str], folder: str, held_bytes: int) -> int:
    """How many bytes may lie in the folder, of which held_bytes do. Raises OSError."""
    given = env.get("CLUSTER_DATA_CACHE_GIB")
    if given:
        return int(float(given) * (1 << 30))
    usage = shutil.disk_usage(folder)
    reserve = min(max(usage.total * RESERVE_SHARE, RESERVE_BYTES), usage.free / 2)
    return int(held_bytes + usage.free - reserve)


def _make_folder(folder: str) -> str:
    """A folder of this user's alone. Raises OSError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except PermissionError:  # it is root's: so that it is there for everybody, we ask for a folder in it
        words = ["sudo", "-n", "install", "-d", "-m", "700", "-o", str(os.getuid()), "-g", str(os.getgid()), folder]
        with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):  # what came of it is looked at below
            subprocess.call(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SUDO_TIMEOUT_S)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"{folder}: staged data cannot be written there")
    return folder
