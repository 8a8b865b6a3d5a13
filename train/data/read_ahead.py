"""A file somewhere else, read in order: several ranges of it are under way at once, in bounded memory."""

import io
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK_BYTES = 8 * 2**20
AHEAD = 4
"""Ranges under way or waiting to be read."""

Fetch = Callable[[int, int], bytes]


class _Ahead(io.RawIOBase):
    def __init__(self, fetch: Fetch, pool: ThreadPoolExecutor, *, size_bytes: int, begin: int, end: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._pool = pool
        self._size_bytes = size_bytes
        self._end = end
        self._at = begin
        self._asked = begin
        self._coming: deque[Future[bytes]] = deque()
        self._here = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Forward: what is passed over within the ranges that are coming is thrown away. Backward: all of them are."""
        target = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence] + offset
        if not self._at <= target <= self._asked:
            for coming in self._coming:
                coming.cancel()
            self._coming.clear()
            self._here = memoryview(b"")
            self._at = self._asked = target
        while self._at < target:
            self._here = self._here or self._next()
            step = min(len(self._here), target - self._at)
            self._here, self._at = self._here[step:], self._at + step
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._here = self._here or self._next()
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._here))
        target[:count] = self._here[:count]
        self._here, self._at = self._here[count:], self._at + count
        return count

    def _next(self) -> memoryview:
        """The next range, empty at the end."""
        self._ask()
        if not self._coming:
            return memoryview(b"")
        content = self._coming.popleft().result()
        self._ask()
        return memoryview(content)

    def _ask(self) -> None:
        """Have the next ranges fetched: up to the probable end all that may be under way, behind it one."""
        while len(self._coming) < (AHEAD if self._asked < self._end else 1) and self._asked < self._size_bytes:
            if self._coming and self._asked >= self._end:
                return
            stop = min(self._asked + CHUNK_BYTES, self._size_bytes)
            self._coming.append(self._pool.submit(self._fetch, self._asked, stop))
            self._asked = stop


@contextmanager
def open_ahead(fetch: Fetch, *, size_bytes: int, begin: int, end: int | None) -> Iterator[BinaryIO]:
    """A file of which fetch(begin, stop) gives any range, all of it; called from several threads.

    begin: where reading begins.
    end: up to where it is fetched ahead; None for all. Raises what `fetch` raises.
    """
    pool = ThreadPoolExecutor(AHEAD)
    raw = _Ahead(fetch, pool, size_bytes=size_bytes, begin=begin, end=size_bytes if end is None else end)
    try:
        yield cast("BinaryIO", io.BufferedReader(raw, buffer_size=2**20))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
