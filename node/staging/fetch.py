"""Fetches objects of S3 into a node's cache: several at once, each in ranges, verified as a whole.

Objects that a process waits for come before prefetched ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from node.staging import integrity, s3
from node.staging.cache import Cache, Slot, compare, make_key

RANGE_BYTES = 16 << 20
CONNECTIONS = 16
OBJECTS = 8  # at once
ATTEMPTS = 3  # for an object that arrives damaged
TICK_S = 0.5
NOW, AHEAD = 0, 1


class StageError(Exception):
    """Data could not be staged; the message states what, where and why."""


class Item:
    """An object to fetch. path: its path on this node, once it is available; error: why it failed."""

    def __init__(self, entry: s3.Entry, urgency: int) -> None:
        self.entry = entry
        self.urgency = urgency
        self.path: str | None = None
        self.error: Exception | None = None
        self.was_here = False
        self.begun = False

    @property
    def is_settled(self) -> bool:
        """Whether it is available or has failed."""
        return self.path is not None or self.error is not None


class _Threads:
    """Threads that call do(thing) for each thing, the most urgent first."""

    def __init__(self, count: int, do: Callable[[Any], None]) -> None:
        self._do = do
        self._waiting: queue.PriorityQueue[tuple[int, int, int, Any]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, urgency: int, number: int, thing: Any) -> None:
        """Submits a thing; with the same urgency, the lowest number comes first."""
        self._waiting.put((urgency, number, next(self._numbers), thing))

    def _work(self) -> None:
        while True:
            self._do(self._waiting.get()[-1])


class Fetcher:
    """Fetches objects from `store` into `cache`. say: shows a line to the user."""

    def __init__(self, store: s3.Store, cache: Cache, say: Callable[[str], None]) -> None:
        self.received_bytes = 0
        self.settled = threading.Condition()
        self._store = store
        self._cache = cache
        self._say = say
        self._stopped = threading.Event()
        self._items: dict[str, Item] = {}
        self._lock = threading.Lock()
        self._objects = _Threads(OBJECTS, self._obtain)
        self._ranges = _Threads(CONNECTIONS, lambda fetch_range: fetch_range())
        self._numbers = itertools.count()

    def want(self, entries: Iterable[s3.Entry], urgency: int) -> list[Item]:
        """Returns the Items of these entries, in order.

        An object that was wanted before is not fetched twice, but may become more urgent.
        """
        with self._lock:
            return [self._want(entry, urgency) for entry in entries]

    def _want(self, entry: s3.Entry, urgency: int) -> Item:
        key = make_key(entry)
        item = self._items.get(key)
        if item is None or (item.is_settled and (item.error or urgency == NOW)):  # it may have been evicted since
            item = self._items[key] = Item(entry, urgency)
        elif item.urgency <= urgency:
            return item
        item.urgency = urgency
        self._objects.put(urgency, next(self._numbers), item)  # perhaps a second time: _obtain acts once
        return item

    def stop(self) -> None:
        """Starts no more fetches."""
        self._stopped.set()

    # -- one object ----------------------------------------------------------------------------------------------

    def _obtain(self, item: Item) -> None:
        with self._lock:
            if item.begun or self._stopped.is_set():
                return
            item.begun = True
        try:
            path = self._cache.find(item.entry)
            item.was_here = path is not None
            while path is None:
                slot = self._cache.claim(item.entry, self._stopped.is_set)
                if self._stopped.is_set():
                    return
                if slot is not None:
                    with contextlib.closing(slot):
                        self._fetch(item, slot)
                path = self._cache.find(item.entry)
            item.path = path
        except Exception as error:  # noqa: BLE001 - reported to the process that waits, which would wait forever
            item.error = error
        with self.settled:
            self.settled.notify_all()

    def _fetch(self, item: Item, slot: Slot) -> None:
        entry, seen = item.entry, set[int]()
        for _ in range(ATTEMPTS):
            self._fetch_ranges(item, slot)
            check = integrity.find_check({"etag": entry.etag}, entry.size_bytes)
            right, crc32 = compare(slot.path, check)
            if not right and check is not None:
                # The ETag is useless if a KMS key encrypts the object, or if the guess of the part size is wrong, as is
                # assumed when the same bytes arrive twice.
                useless = self._store.is_encrypted(entry.url) if check.certain else crc32 in seen
                check = None if useless else check
            if right or check is None:
                if check is None:
                    self._say(f"data: not verified: S3 has no usable checksum of {entry.url}")
                slot.publish(crc32)
                return
            seen.add(crc32)
        raise StageError(f"{entry.url} arrived damaged {ATTEMPTS} times: its checksum does not match")

    def _fetch_ranges(self, item: Item, slot: Slot) -> None:
        size = item.entry.size_bytes
        if size <= RANGE_BYTES:
            self._fetch_range(item, slot, 0)
            return
        done, errors = threading.Semaphore(0), list[Exception]()

        def fetch(begin: int) -> None:
            try:
                if not errors and not self._stopped.is_set():
                    self._fetch_range(item, slot, begin)
            except Exception as error:  # noqa: BLE001 - raised below, in the object's thread
                errors.append(error)
            done.release()

        number = next(self._numbers)
        begins = range(0, size, RANGE_BYTES)
        for begin in begins:
            self._ranges.put(item.urgency, number, functools.partial(fetch, begin))
        for _ in begins:
            done.acquire()
        if errors:
            raise errors[0]

    def _fetch_range(self, item: Item, slot: Slot, begin: int) -> None:
        def take(at: int, piece: memoryview) -> None:
            with self._lock:
                self.received_bytes += len(piece)
            while piece:
                written = os.pwrite(slot.file, piece, at)
                piece, at = piece[written:], at + written

        try:
            self._store.read_range(item.entry, begin, min(RANGE_BYTES, item.entry.size_bytes - begin), take)
        except s3.StoreError as error:
            if error.code != "PreconditionFailed":
                raise
            what = f"{item.entry.url} was overwritten while it was being staged: start the job again"
            raise s3.StoreError(what, error.code) from None


def explain(error: Exception, folder: str) -> str:
    """Returns the message for an error of staging."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder} is full: use a larger volume, or a smaller [data] cache_gib"
    return str(error) or type(error).__name__


def wait(fetcher: Fetcher, items: Sequence[Item], tick: Callable[[], None]) -> None:
    """Waits until all items are available or one has failed. tick: called regularly, and may raise."""
    tick_at = time.monotonic() + TICK_S
    while True:
        with fetcher.settled:
            if all(item.path for item in items) or any(item.error for item in items):
                return
            fetcher.settled.wait(max(0.0, tick_at - time.monotonic()))
        if time.monotonic() >= tick_at:
            tick()
            tick_at = time.monotonic() + TICK_S
