"""The staged objects of a node, for all of its jobs: whole and verified, or not there at all.

    objects/KEY/NAME, meta      an object of S3, and its size, CRC-32 and the boot in which that was last compared
    incoming/KEY/               one that is being fetched, by who holds its lock
    users/*/                    of a live process, who holds its lock: `keys`, that it uses, files that stand for
                                objects of which it does not read a byte, and files that are not in S3 yet
    lock                        held for moments, by who changes any of this

A key stands for an object's URL, ETag and size: what is overwritten in S3 is another object. All locks are the
kernel's and end with their process: what a killed one has left is known by that, and removed by the next.
Python 3.6 and later, standard library only.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import stat
import time
import zlib

import object_store
import stage_plan

META, KEYS = "meta", "keys"
PIECE_BYTES = 1 << 20
WAIT_S = 0.1
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# What MXNet's readers do not take for a list, a cache file or options.
PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]")
NAME_LENGTH = 100


class NoRoom(OSError):
    """The cache holds no more; says why."""


class Cache(object):
    """The staged objects in a folder, for any thread; most_bytes: of all of them together."""

    def __init__(self, folder, most_bytes):
        self.folder = folder
        self.most_bytes = most_bytes
        self.boot = _read(BOOT_ID).strip()
        self.slots = set()
        for name in ("objects", "incoming", "users"):
            _make_own(self.path(name))
        self._user = self.path("users", "%d-%08x" % (os.getpid(), random.getrandbits(32)))
        with self.locked():
            os.mkdir(self._user, 0o700)
            self._user_lock = _lock_folder(self._user)
            self._clean_up()

    def close(self):
        """Use nothing any more, and leave nothing half done."""
        for slot in list(self.slots):
            slot.close()
        shutil.rmtree(self._user, ignore_errors=True)
        os.close(self._user_lock)

    def use(self, entries):
        """Keep these, from when they are there. Raises NoRoom where they cannot be, all together."""
        needed = sum(entry.size_bytes for entry in {make_key(entry): entry for entry in entries}.values())
        if needed > self.most_bytes:
            raise NoRoom(
                "%s have to be staged, and %s holds %s at most: more nodes, a larger volume, or [data] cache_gib"
                % (render_size(needed), self.folder, render_size(self.most_bytes))
            )
        with self.locked(), open(os.path.join(self._user, KEYS), "a") as stream:
            stream.write("".join(make_key(entry) + "\n" for entry in entries))

    def find(self, entry):
        """The path of an object that is here, whole; else None. Reads it once after each boot of this node."""
        key = make_key(entry)
        path = self.path("objects", key, make_name(entry.url))
        try:
            with open(self.path("objects", key, META)) as stream:
                meta = json.load(stream)
            size = os.stat(path).st_size
        except (FileNotFoundError, ValueError):  # ValueError: it was written as the machine went down
            self._discard(key)
            return None
        # Nothing is synced: what a machine that went down has kept of it is not known.
        stale = meta.get("boot") != self.boot
        if size != entry.size_bytes or (stale and find_crc32(path) != meta.get("crc32")):
            self._discard(key)
            return None
        if stale:
            self.write_meta(self.path("objects", key), dict(meta, boot=self.boot))
        os.utime(self.path("objects", key))
        return path

    def claim(self, entry, should_stop):
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
                    return self._make_slot(entry, folder)
            time.sleep(WAIT_S)
        return None

    def find_hole(self, size_bytes):
        """A file of that size which nobody may read, but root: its content is not there."""
        path = os.path.join(self._user, str(size_bytes))
        if not os.path.exists(path):
            with open(path, "w") as stream:
                os.ftruncate(stream.fileno(), size_bytes)
            os.chmod(path, 0)
        return path

    def find_draft(self, url):
        """A path for the content of an object that is not in S3 yet. Raises ValueError for what names no object."""
        object_store.split_object_url(url)
        return os.path.join(self._user, "draft-%08x-%s" % (random.getrandbits(32), make_name(url)))

    # -- under the lock ------------------------------------------------------------------------------------------

    def _make_slot(self, entry, folder):
        os.mkdir(folder, 0o700)
        slot = Slot(self, entry, folder)
        self.slots.add(slot)
        return slot

    def _make_room(self, size_bytes):
        """Whether there is room now, or will be once what nobody has asked for yet has come. Raises NoRoom."""
        self._clean_up()
        used = self._used_keys()
        coming = os.listdir(self.path("incoming"))
        kept = [self._describe("incoming", key, stays=True) for key in coming]
        kept += [self._describe("objects", key, stays=key in used) for key in os.listdir(self.path("objects"))]
        leaving = stage_plan.choose_leaving(kept, size_bytes, self.most_bytes)
        for key in leaving or ():
            self._remove(key)
        if leaving is None and used.issuperset(coming):
            raise NoRoom(
                "%s holds %s at most, and no more can go: its data is in use; a larger volume, or [data] cache_gib"
                % (self.folder, render_size(self.most_bytes))
            )
        return leaving is not None

    def _describe(self, place, key, *, stays):
        path = self.path(place, key)
        return os.stat(path).st_mtime, _size(path), key, stays

    def _clean_up(self):
        """Remove what killed processes have left."""
        for place in ("incoming", "users"):
            for name in os.listdir(self.path(place)):
                path = self.path(place, name)
                if not self._is_locked(path):
                    shutil.rmtree(path, ignore_errors=True)

    def _used_keys(self):
        """The keys in use; those of dead processes are gone by then."""
        users = [self.path("users", name, KEYS) for name in os.listdir(self.path("users"))]
        return {key for user in users if os.path.exists(user) for key in _read(user).split()}

    def _remove(self, key):
        gone = self.path("incoming", "%s.%08x" % (key, random.getrandbits(32)))
        os.rename(self.path("objects", key), gone)  # at once, and then file by file
        shutil.rmtree(gone, ignore_errors=True)

    # -- the rest ------------------------------------------------------------------------------------------------

    def _discard(self, key):
        with self.locked():
            if os.path.isdir(self.path("objects", key)):
                self._remove(key)

    @contextlib.contextmanager
    def locked(self):
        """Alone with the folder, among all processes of this host."""
        descriptor = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _is_locked(path):
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

    def write_meta(self, folder, meta):
        """Put what is known of an object beside it, at once."""
        temporary = os.path.join(folder, "%s.%08x" % (META, random.getrandbits(32)))
        with open(temporary, "w") as stream:
            json.dump(meta, stream)
        os.rename(temporary, os.path.join(folder, META))

    def path(self, *names):
        """A path in the folder."""
        return os.path.join(self.folder, *names)


class Slot(object):
    """The place of an object that is being fetched, nobody else's until it is closed."""

    def __init__(self, cache, entry, folder):
        self._cache = cache
        self._entry = entry
        self._folder = folder
        self.path = os.path.join(folder, make_name(entry.url))
        self._published = False
        self._lock = _lock_folder(folder)
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
        os.ftruncate(self.file, entry.size_bytes)  # it counts at once

    def publish(self, crc32):
        """Let it be seen, now that all of it is there and right."""
        meta = {"url": self._entry.url, "crc32": crc32, "boot": self._cache.boot}
        self._cache.write_meta(self._folder, meta)
        with self._cache.locked():
            os.rename(self._folder, self._cache.path("objects", make_key(self._entry)))
        self._published = True

    def close(self):
        """Give the place up; what was not published is removed."""
        if self not in self._cache.slots:
            return
        self._cache.slots.discard(self)
        os.close(self.file)
        if not self._published:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def make_key(entry):
    """What an object is known by here."""
    told = "%s\n%s\n%d" % (entry.url, entry.etag, entry.size_bytes)
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def make_name(url):
    """The name of an object's file: the end of its URL, as MXNet's readers can take it."""
    name = PLAIN_NAME.sub("_", url.rpartition("/")[2])[-NAME_LENGTH:]
    return "data" if name in ("", ".", "..") or name.partition(".")[0] == META else name


def find_crc32(path):
    """The CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(PIECE_BYTES), b""):
            crc = zlib.crc32(piece, crc)
    return crc


def find_held(folder):
    """The bytes of all that lies in a cache's folder already."""
    places = [os.path.join(folder, name) for name in ("objects", "incoming")]
    return sum(_size(os.path.join(place, key)) for place in places if os.path.isdir(place) for key in os.listdir(place))


def render_size(count):
    """Bytes for a reader: "1.2 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return "%.1f %s" % (count / size, unit)
    return "%d kB" % -(-count // 1000)


def _make_own(path):
    """Make a folder that nobody else may write to: what lies there is trained with. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError("%s: it is a link or another user's, or others may write to it: set [data] cache_dir" % path)


def _lock_folder(path):
    """Hold a folder's lock for as long as the descriptor that this returns is open."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _size(folder):
    """The bytes of an object's folder, but for what is just going."""
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                if name.partition(".")[0] == META:
                    continue
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _read(path):
    with open(path) as stream:
        return stream.read()
