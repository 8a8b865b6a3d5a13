"""Brings a job's data, and what it has saved before, from S3 to this node's disk before the job's processes start.

The data is in the node's cache (cache.py), verified, for all of its jobs. A job sees it below a folder of its own, as
links with the names that the objects have in S3; they stay while its agent lives, which holds the folder's lock. Saved
objects (outputs.py) are files of their own, which the job may overwrite.
"""

import contextlib
import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from node.staging import cache, integrity, s3, words

RANGE_BYTES = 16 << 20
CONNECTIONS, OBJECTS = 16, 8  # at once
ATTEMPTS = 3  # for an object that arrives damaged
REPORT_EVERY_S = 5.0
WAIT_S = 0.1  # for another process, which fetches an object
Saved = tuple[s3.Entry, str]


class DataError(Exception):
    """The data could not be brought to this node; the message states what, where and why."""


class Stopped(Exception):
    """The job has ended."""


class LocalData:
    """The data of one job on this node. env: that of its processes. message: shows a line to the user.

    stopped: once set, `bring` ends soon.
    folder: $CLUSTER_DATA_DIR, that of [data] url; None until data has been brought.
    """

    def __init__(
        self, env: Mapping[str, str], message: Callable[[str], None], stopped: threading.Event | None = None
    ) -> None:
        self._store = s3.Store(env)
        self._host = env.get("CLUSTER_HOST", "data")
        self._url = env.get("CLUSTER_DATA_URL", "")
        self._message = message
        folder = cache.find_folder(env)
        self._cache = cache.Cache(folder, cache.find_limit(env, folder, cache.find_held(folder)))
        self._root = self._cache.own_path("s3")
        self._output = env["CLUSTER_OUTPUT_DIR"]
        self._shares_disk = os.stat(self._output).st_dev == os.stat(folder).st_dev
        self.folder: str | None = None
        self._stopped = stopped or threading.Event()
        self._received_bytes = 0
        self._unverified: list[str] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Removes the job's folder; the objects stay for later jobs."""
        self._cache.close()

    def bring(self, urls: Sequence[str], saved: Sequence[Saved] = ()) -> dict[str, str]:
        """Fetches what is at these URLs, unless it is here. Returns what replaces each URL in the job's words.

        A URL without objects is missing there, unless it is below [data] url. saved: objects with the paths of the
        files to write. Raises DataError, Stopped, OSError, ValueError.
        """
        found = {url: self._list(url) for url in urls}
        for url in [url for url, entries in found.items() if not entries]:
            if self._url and words.is_below(url, self._url):
                raise DataError(f"{url}: there is nothing to read: cluster data ls {url.rpartition('/')[0]}/")
            del found[url]
        entries = sorted({entry for row in found.values() for entry in row})
        for entry in (*entries, *(entry for entry, _ in saved)):
            s3.split_object_url(entry.url)  # no key leaves the folder
        self._check_room(entries, saved)
        self._fetch(entries, saved)
        if self._unverified:
            count, first = len(self._unverified), min(self._unverified)
            self._message(f"{self._host}: S3 has no usable checksum of {count} objects, such as {first}: not verified")
        if urls and self._url.startswith("s3://"):
            self.folder = words.make_path(self._root, self._url.rstrip("/"))
        return {url: words.make_value(self._root, url, row) for url, row in found.items()}

    def _list(self, url: str) -> list[s3.Entry]:
        """Returns the objects at a URL: one, those of a folder, or those whose keys begin with it."""
        key = s3.split_url(url)[1]
        if key and not key.endswith("/"):
            entry = self._store.find(url)
            if entry is not None:
                return [entry, *self._find_index(url)]
        found = self._without_markers(list(self._store.list(url)))
        if not found and key and not key.endswith("/"):
            beside = self._store.list(url.rpartition("/")[0], below=False)
            found = [entry for entry in beside if entry.url.startswith(url)]
        return found

    def _find_index(self, url: str) -> list[s3.Entry]:
        """Returns the index beside a file of records, if there is one: Gluon's data sets open it by its name."""
        if not url.endswith(words.RECORDS):
            return []
        try:
            found = self._store.find(url.removesuffix(words.RECORDS) + words.INDEX)
        except s3.StoreError as error:
            if error.code != "AccessDenied":  # as for an object that does not exist, for those who may not list
                raise
            found = None
        return [found] if found is not None else []

    def _without_markers(self, entries: list[s3.Entry]) -> list[s3.Entry]:
        """Leaves out the markers of folders, empty objects `folder/`, which obstore lists recursively as `folder`."""
        folders = {entry.url.rpartition("/")[0] for entry in entries if not entry.size_bytes}
        files = {entry.url for folder in folders for entry in self._store.list(folder, below=False)}
        return [entry for entry in entries if entry.size_bytes or entry.url in files]

    def _check_room(self, entries: Sequence[s3.Entry], saved: Sequence[Saved]) -> None:
        """Raises DataError if the objects do not fit on this node's disk."""
        needed, room = sum(entry.size_bytes for entry in entries), self._cache.most_bytes
        if needed > room:
            source = self._url or "s3://BUCKET/FOLDER/"
            raise DataError(
                f"{self._host}: the data has {cache.render_size(needed)}, and {self._cache.folder} has room for "
                f"{cache.render_size(room)}: use a larger disk, another [data] cache_dir or a larger cache_gib, or do "
                f'not copy it: [[volumes]] source = "{source}"'
            )
        of_saved, room = sum(entry.size_bytes for entry, _ in saved), shutil.disk_usage(self._output).free
        if self._shares_disk:
            room += cache.find_held(self._cache.folder) - needed
        if of_saved > room:
            raise DataError(
                f"{self._host}: what the job has saved has {cache.render_size(of_saved)}, and {self._output} has room "
                f"for {cache.render_size(max(room, 0))}: use a larger disk, or remove old checkpoints: cluster data rm"
            )

    # -- copying -------------------------------------------------------------------------------------------------

    def _fetch(self, entries: Sequence[s3.Entry], saved: Sequence[Saved]) -> None:
        """Fetches the objects, and reports the progress."""
        with ThreadPoolExecutor(OBJECTS) as objects:  # before the cache makes room for others
            is_here = list(objects.map(self._link, entries))
        if saved and self._shares_disk:
            self._cache.leave_room(sum(entry.size_bytes for entry, _ in saved))
        missing = (entry for entry, here in zip(entries, is_here, strict=True) if not here)
        work = [(entry, functools.partial(self._obtain, entry)) for entry in missing]
        work += [(entry, functools.partial(self._replace, entry, path)) for entry, path in saved]
        total = sum(entry.size_bytes for entry, _ in work)
        self._ranges = ThreadPoolExecutor(CONNECTIONS)
        with self._ranges, ThreadPoolExecutor(OBJECTS) as objects:
            running = [objects.submit(do) for _, do in work]
            try:
                while True:
                    done, left = wait(running, REPORT_EVERY_S, FIRST_EXCEPTION)
                    for one in done:
                        one.result()  # raises its error
                    if not left:
                        return
                    has = sum(entry.size_bytes for (entry, _), one in zip(work, running, strict=True) if one.done())
                    has = min(max(has, self._received_bytes), total)
                    self._message(f"{self._host}: {cache.render_size(has)} of {cache.render_size(total)} of data")
            except BaseException:
                self._stopped.set()
                raise

    def _link(self, entry: s3.Entry) -> bool:
        """Links an object in the cache to the job's folder. Returns whether it is there."""
        link = words.make_path(self._root, entry.url)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another job has just made room
            path = self._cache.find(entry)
            if path is not None:
                os.link(path, link)
                return True
        return False

    def _obtain(self, entry: s3.Entry) -> None:
        """Fetches an object to the cache, unless another job does, and links it. Raises as `bring`."""
        while not self._link(entry):
            with self._cache.claimed(entry) as file:
                if file is not None:
                    self._copy(entry, file)
            if file is None and self._stopped.wait(WAIT_S):
                raise Stopped

    def _replace(self, entry: s3.Entry, path: str) -> None:
        """Fetches an object to a file, all of it or nothing, with its time. Raises as `bring`."""
        draft = os.path.join(os.path.dirname(self._output), f"saved-{cache.make_key(entry)}")  # is not copied to S3
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(draft, "wb+") as file:
                self._copy(entry, file.fileno())
            os.utime(draft, (entry.modified_at, entry.modified_at))
            os.rename(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(draft)

    def _copy(self, entry: s3.Entry, file: int) -> None:
        """Writes an object to a file, and verifies it."""
        seen = set[bytes]()
        for _ in range(ATTEMPTS):
            begins = range(0, entry.size_bytes, RANGE_BYTES)
            list(self._ranges.map(lambda begin: self._copy_range(entry, file, begin), begins))
            check = integrity.find_check({"etag": entry.etag}, entry.size_bytes)
            found = set[bytes]()
            for digest in check.compute(file, self._go_on) if check is not None else ():
                if check is not None and check.is_digest(digest):
                    return
                found.add(digest)
            # The ETag is useless if a KMS key encrypts the object, or if the guess of the part size is wrong, as is
            # assumed when the same bytes arrive twice.
            if check is None or (self._store.is_encrypted(entry.url) if check.certain else found & seen):
                self._unverified.append(entry.url)
                return
            seen |= found
        raise DataError(f"{entry.url} arrived damaged {ATTEMPTS} times: its checksum does not match")

    def _go_on(self) -> None:
        """Raises Stopped if the job has ended."""
        if self._stopped.is_set():
            raise Stopped

    def _copy_range(self, entry: s3.Entry, file: int, begin: int) -> None:
        def take(at: int, piece: memoryview) -> None:
            with self._lock:
                self._received_bytes += len(piece)
            while piece:
                written = os.pwrite(file, piece, at)
                piece, at = piece[written:], at + written

        self._go_on()
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
