"""Fetches objects of S3 into a node's cache: several at once, each in ranges, verified as a whole.

What is asked for comes before what is fetched ahead of need. Python 3.6 and later, standard library only.
"""

import contextlib
import errno
import heapq
import itertools
import os
import threading
import time
import zlib

import integrity
import object_store
import stage_cache

RANGE_BYTES = 16 << 20
CONNECTIONS = 16
OBJECTS = 8  # at the same time
ATTEMPTS = 3  # at an object that arrives damaged
NOW, AHEAD = 0, 1
NOTHING = "%s: there is nothing to read: cluster data ls %s"
OVERWRITTEN = "%s was overwritten while it was being staged: start the job again"


class StageError(Exception):
    """Data could not be staged; says what, where and why."""


class Item(object):
    """An object that is wanted here. path: where it is, once it is; error: why it will not be."""

    def __init__(self, entry, urgency):
        self.entry = entry
        self.urgency = urgency
        self.path = None
        self.error = None
        self.was_here = False
        self.begun = False

    @property
    def is_settled(self):
        """Whether there is nothing more to wait for."""
        return self.path is not None or self.error is not None


class Queue(object):
    """Things to do, the most urgent first, done by threads of its own."""

    def __init__(self, threads, do):
        self._do = do
        self._heap = []
        self._numbers = itertools.count()
        self._there = threading.Condition()
        for _ in range(threads):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, urgency, thing):
        """Have it done; urgency: anything that compares, the lowest is first."""
        with self._there:
            heapq.heappush(self._heap, (urgency, next(self._numbers), thing))
            self._there.notify()

    def _work(self):
        while True:
            with self._there:
                while not self._heap:
                    self._there.wait()
                thing = heapq.heappop(self._heap)[2]
            self._do(thing)


class Fetcher(object):
    """Fetches into `cache` from `store`; say: gets words for the user."""

    def __init__(self, store, cache, say):
        self.received_bytes = 0
        self.settled = threading.Condition()
        self._store = store
        self._cache = cache
        self._say = say
        self._stopped = False
        self._items = {}
        self._lock = threading.Lock()
        self._objects = Queue(OBJECTS, self._obtain)
        self._ranges = Queue(CONNECTIONS, lambda range_: range_())
        self._numbers = itertools.count()

    def want(self, entries, urgency):
        """The Items of these, in order. What was wanted before is not fetched twice, but may become more urgent."""
        with self._lock:
            return [self._want(entry, urgency) for entry in entries]

    def _want(self, entry, urgency):
        key = stage_cache.make_key(entry)
        item = self._items.get(key)
        if item is None or (item.is_settled and (item.error or urgency == NOW)):  # it may have had to go since
            item = self._items[key] = Item(entry, urgency)
        elif item.urgency <= urgency:
            return item
        item.urgency = urgency
        self._objects.put((urgency, next(self._numbers)), item)  # perhaps for the second time: it is done once
        return item

    def stop(self):
        """Begin nothing more."""
        self._stopped = True

    # -- one object ----------------------------------------------------------------------------------------------

    def _obtain(self, item):
        with self._lock:
            if item.begun or self._stopped:
                return
            item.begun = True
        try:
            path = self._cache.find(item.entry)
            item.was_here = path is not None
            while path is None:
                slot = self._cache.claim(item.entry, lambda: self._stopped)
                if self._stopped:
                    return
                if slot is not None:
                    with contextlib.closing(slot):
                        self._fetch(item, slot)
                path = self._cache.find(item.entry)
            item.path = path
        except Exception as error:  # noqa: BLE001 - it is told to who waits for the object, which would be for ever
            item.error = error
        with self.settled:
            self.settled.notify_all()

    def _fetch(self, item, slot):
        entry = item.entry
        headers = self._store.head(entry.url)
        if headers.get("etag") != entry.etag or headers.get("content-length") != str(entry.size_bytes):
            raise StageError(OVERWRITTEN % entry.url)
        for _ in range(ATTEMPTS):
            self._fetch_ranges(item, slot)
            right, crc32 = self._compare(entry, slot.path, headers)
            if right:
                slot.publish(crc32)
                return
        raise StageError("%s arrived damaged %d times: its checksum is another" % (entry.url, ATTEMPTS))

    def _compare(self, entry, path, headers):
        """(whether a file is the object that S3 answered these headers of, its CRC-32)."""
        check = integrity.find_check(headers, entry.size_bytes)
        right, crc32 = compare(path, check)
        if not right and not check.certain:
            # It was sent in parts of a size that had to be guessed: now it is asked for.
            part_bytes = int(self._store.head(entry.url, part=1)["content-length"])
            check = integrity.find_check(headers, entry.size_bytes, part_bytes=part_bytes)
            right, crc32 = compare(path, check)
        if check is None:
            self._say("data: S3 has no checksum of %s that can be compared" % entry.url)
        return right, crc32

    def _fetch_ranges(self, item, slot):
        size = item.entry.size_bytes
        ranges = [(begin, min(RANGE_BYTES, size - begin)) for begin in range(0, size, RANGE_BYTES)]
        if len(ranges) == 1:
            self._fetch_range(item, slot, ranges[0])
            return
        done, errors = threading.Semaphore(0), []

        def fetch(range_):
            try:
                if not errors and not self._stopped:
                    self._fetch_range(item, slot, range_)
            except Exception as error:  # noqa: BLE001 - raised below, in the thread of the object
                errors.append(error)
            done.release()

        number = next(self._numbers)
        for range_ in ranges:
            self._ranges.put((item.urgency, number), lambda range_=range_: fetch(range_))
        for _ in ranges:
            done.acquire()
        if errors:
            raise errors[0]

    def _fetch_range(self, item, slot, range_):
        def take(at, piece):
            view = memoryview(piece)
            while view:
                written = os.pwrite(slot.file, view, at)
                view, at = view[written:], at + written
            with self._lock:
                self.received_bytes += len(piece)

        try:
            self._store.read_range(item.entry, range_[0], range_[1], take)
        except object_store.StoreError as error:
            if error.code != "PreconditionFailed":
                raise
            raise object_store.StoreError(OVERWRITTEN % item.entry.url, error.code) from None


def compare(path, check):
    """(whether a file is what `check` says, its CRC-32), in one reading. check: None for what cannot be compared."""
    crc = 0
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(stage_cache.PIECE_BYTES), b""):
            crc = zlib.crc32(piece, crc)
            if check is not None:
                check.feed(piece)
    return check is None or check.matches(), crc


def explain(error, folder):
    """An error of staging in plain words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of %s is full: a larger volume, or a smaller [data] cache_gib" % folder
    return str(error) or type(error).__name__


def wait(fetcher, items, tick, every_s=0.5):
    """Wait until all items are here, or one cannot be; tick: is called now and then, and may raise."""
    tick_at = time.monotonic() + every_s
    while True:
        with fetcher.settled:
            if all(item.path for item in items) or any(item.error for item in items):
                return
            fetcher.settled.wait(max(0.0, tick_at - time.monotonic()))
        if time.monotonic() >= tick_at:
            tick()
            tick_at = time.monotonic() + every_s
