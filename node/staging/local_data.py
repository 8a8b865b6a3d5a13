"""Brings a job's data from S3 to this node's disk before the job's processes start there.

The objects are in the node's cache (cache.py), verified, for all of its jobs. A job sees them below a folder of its
own, as links with the names that they have in S3; they stay while its agent lives, which holds the folder's lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from node.staging import cache, integrity, s3, words

RANGE_BYTES = 16 << 20
CONNECTIONS, OBJECTS = 16, 8  # at once
ATTEMPTS = 3  # for an object that arrives damaged
REPORT_EVERY_S = 5.0


class DataError(Exception):
    """The data could not be brought to this node; the message states what, where and why."""


class Stopped(Exception):
    """The job has ended."""


class LocalData:
    """The data of one job on this node. env: that of its processes. say: shows a line to the user.

    folder: $CLUSTER_DATA_DIR, that of [data] url.
    """

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._store = s3.Store(env)
        self._host = env.get("CLUSTER_HOST", "data")
        self._url = env.get("CLUSTER_DATA_URL", "")
        self._say = say
        folder = cache.find_folder(env)
        self._cache = cache.Cache(folder, cache.find_limit(env, folder, cache.find_held(folder)))
        self._root = self._cache.own_path("s3")
        self.folder = words.make_path(self._root, self._url.rstrip("/")) if self._url.startswith("s3://") else None
        self._stopped = threading.Event()
        self._received_bytes = 0
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Ends `bring` soon."""
        self._stopped.set()

    def close(self) -> None:
        """Removes the job's folder, and unfinished objects; complete ones stay for later jobs."""
        self._cache.close()

    def bring(self, urls: Sequence[str]) -> dict[str, str]:
        """Fetches what is at these URLs, unless it is here. Returns what replaces each URL in the job's words.

        A URL without objects is missing there, unless it is below [data] url. Raises DataError, Stopped, OSError,
        ValueError.
        """
        found = {url: self._list(url) for url in urls}
        for url in [url for url, entries in found.items() if not entries]:
            if self._url and words.is_below(url, self._url):
                raise DataError(f"{url}: there is nothing to read: cluster data ls {url.rpartition('/')[0]}/")
            del found[url]
        entries = sorted({entry for row in found.values() for entry in row})
        self._reserve(entries)
        for entry, path in self._fetch(entries):
            s3.split_object_url(entry.url)  # no key leaves the folder
            place = words.make_path(self._root, entry.url)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.link(path, place)
        return {url: words.make_value(self._root, url, row) for url, row in found.items()}

    def _list(self, url: str) -> list[s3.Entry]:
        """Returns the objects at a URL: one, those of a folder, or those whose keys begin with it. Skips empty ones."""
        key = s3.split_url(url)[1]
        if key and not key.endswith("/"):
            entry = self._store.find(url)
            if entry is not None:
                return [entry]
        found = [entry for entry in self._store.list(url) if entry.size_bytes]
        if not found and key and not key.endswith("/"):
            beside = self._store.list(url.rpartition("/")[0], below=False)
            found = [entry for entry in beside if entry.size_bytes and entry.url.startswith(url)]
        return found

    def _reserve(self, entries: Sequence[s3.Entry]) -> None:
        """Protects objects from eviction. Raises DataError if they do not fit on this node's disk, before any copy."""
        needed, room = sum(entry.size_bytes for entry in entries), self._cache.most_bytes
        if needed > room:
            source = self._url or "s3://BUCKET/FOLDER/"
            raise DataError(
                f"{self._host}: the data has {cache.render_size(needed)}, and {self._cache.folder} has room for "
                f"{cache.render_size(room)}: use a larger disk, another [data] cache_dir or a larger cache_gib, or do "
                f'not copy it: [[volumes]] source = "{source}"'
            )
        self._cache.use(entries)

    # -- copying -------------------------------------------------------------------------------------------------

    def _fetch(self, entries: Sequence[s3.Entry]) -> Iterator[tuple[s3.Entry, str]]:
        """Returns the objects with their paths in the cache, and reports the progress."""
        total = sum(entry.size_bytes for entry in entries)
        self._ranges = ThreadPoolExecutor(CONNECTIONS)
        with self._ranges, ThreadPoolExecutor(OBJECTS) as objects:
            running = [objects.submit(self._obtain, entry) for entry in entries]
            try:
                while True:
                    done, left = wait(running, REPORT_EVERY_S, FIRST_EXCEPTION)
                    for one in done:
                        one.result()  # raises its error
                    if not left:
                        break
                    has = sum(entry.size_bytes for entry, one in zip(entries, running, strict=True) if one.done())
                    has = min(max(has, self._received_bytes), total)
                    self._say(f"{self._host}: {cache.render_size(has)} of {cache.render_size(total)} of data")
            except BaseException:
                self._stopped.set()
                raise
        return zip(entries, [one.result() for one in running], strict=True)

    def _obtain(self, entry: s3.Entry) -> str:
        """Returns the path of an object in the cache; fetches it if it is not there. Raises as `bring`."""
        while not self._stopped.is_set():
            path = self._cache.find(entry)
            if path is not None:
                return path
            slot = self._cache.claim(entry, self._stopped.is_set)
            if slot is not None:
                with contextlib.closing(slot):
                    self._copy(entry, slot)
        raise Stopped

    def _copy(self, entry: s3.Entry, slot: cache.Slot) -> None:
        seen = set[int]()
        for _ in range(ATTEMPTS):
            begins = range(0, entry.size_bytes, RANGE_BYTES)
            list(self._ranges.map(lambda begin: self._copy_range(entry, slot, begin), begins))
            check = integrity.find_check({"etag": entry.etag}, entry.size_bytes)
            is_right, crc32 = cache.compare(slot.path, check)
            if not is_right and check is not None:
                # The ETag is useless if a KMS key encrypts the object, or if the guess of the part size is wrong, as is
                # assumed when the same bytes arrive twice.
                is_useless = self._store.is_encrypted(entry.url) if check.certain else crc32 in seen
                check = None if is_useless else check
            if is_right or check is None:
                if check is None:
                    self._say(f"{self._host}: data is not verified: S3 has no usable checksum of {entry.url}")
                slot.publish(crc32)
                return
            seen.add(crc32)
        raise DataError(f"{entry.url} arrived damaged {ATTEMPTS} times: its checksum does not match")

    def _copy_range(self, entry: s3.Entry, slot: cache.Slot, begin: int) -> None:
        def take(at: int, piece: memoryview) -> None:
            with self._lock:
                self._received_bytes += len(piece)
            while piece:
                written = os.pwrite(slot.file, piece, at)
                piece, at = piece[written:], at + written

        if self._stopped.is_set():
            raise Stopped
        try:
            self._store.read_range(entry, begin, min(RANGE_BYTES, entry.size_bytes - begin), take)
        except s3.StoreError as error:
            if error.code != "PreconditionFailed":
                raise
            what = f"{entry.url} was overwritten while it was copied: start the job again"
            raise DataError(what) from None


def explain(error: Exception) -> str:
    """Returns the message for an error of `bring`."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the data is full: use a larger volume, or a smaller [data] cache_gib"
    return str(error) or type(error).__name__
