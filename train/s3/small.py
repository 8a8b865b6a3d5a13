"""Files of a MiB at most: many at a time, each in one request, by the fast ways, which know a plain yes alone.

What they are not sure of is left to the thorough ways. Where that becomes the rule, as when S3 is busy or somebody is
in between, the fast ones are given up: nobody is asked twice for every file, nor by so many at once.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from train.s3.crc import crc32
from train.s3.crew import Crew
from train.s3.download import get_small
from train.s3.exchange import UnsureError
from train.s3.lanes import Lanes, Talk, Task, finish
from train.s3.partial_file import PartialFiles
from train.s3.plan import Download, Upload
from train.s3.section import check_unchanged, encode_crc32
from train.s3.wire import Wire

SMALL_BYTES = 2**20
FIRST_LANES = 4
FIRST_THREADS = 2
MOST_AT_ONCE = 64
BYTES_AT_ONCE = 16 * 2**20
_FEW = 8
_ONE_IN = 100


def move_side_by_side(transfers: Sequence[Upload | Download], move: Callable[[Upload | Download], Talk[None]]) -> None:
    """Move all of them. Raises what `move` raises.

    To put is little work, done fastest by one thread. To get is more, which two cores share; and where files are slow
    to be read, threads wait for several.
    """
    lanes = Lanes(first=FIRST_LANES, most=MOST_AT_ONCE, bytes_at_once=BYTES_AT_ONCE)
    room = Room(BYTES_AT_ONCE)

    def move_by_thread(task: Task) -> None:
        with room.take(task.size_bytes):
            finish(task.talk)

    def begin(kind: type[Upload | Download]) -> Iterator[Task]:
        return (Task(item.size_bytes, move(item)) for item in transfers if isinstance(item, kind))

    puts = begin(Upload)
    lanes.run(puts)
    left = chain(puts, begin(Download))
    Crew(FIRST_THREADS, most=MOST_AT_ONCE).run(partial(move_by_thread, task) for task in left)


class SmallMoves:
    """The fast ways, for as long as they are sure. For any thread."""

    def __init__(self, wire: Wire, files: PartialFiles | None = None) -> None:
        """files: where downloads are written to; only uploads can do without."""
        self._wire = wire
        self._files = files
        self._done = 0
        self._unsure = 0

    def move(self, transfer: Upload | Download) -> Talk[int | None]:
        """Move a file; its size in bytes, None where it has to be moved thoroughly.

        Raises ClusterError's kinds, OSError.
        """
        if self._unsure > _FEW + self._done // _ONE_IN:
            return None
        try:
            if isinstance(transfer, Upload):
                size_bytes = yield from put_small(self._wire, transfer)
            else:
                size_bytes = get_small(self._wire, self._find_files(), transfer)
        except UnsureError:
            self._unsure += 1  # a number that two threads spoil is still near enough
            return None
        self._done += 1
        return size_bytes

    def _find_files(self) -> PartialFiles:
        if self._files is None:
            raise ValueError("a download, and no folder for its temporary file")
        return self._files


def is_small(transfer: Upload | Download) -> bool:
    """Whether it is moved by SmallMoves first. Pure."""
    return transfer.size_bytes <= SMALL_BYTES and (transfer.size_bytes > 0 or isinstance(transfer, Upload))


def put_small(wire: Wire, upload: Upload) -> Talk[int]:
    """Put a file; its size in bytes. Raises UnsureError, ClusterError's kinds, OSError."""
    # What Path.open() and its file do for convenience takes a tenth of a small file's time.
    descriptor = os.open(upload.source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        content = os.read(descriptor, upload.size_bytes + 1)
        if len(content) != before.st_size:
            raise UnsureError
        check_unchanged(before, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    crc = encode_crc32(crc32(content))
    told = yield from wire.put_small(upload.destination, content, crc)
    # S3 repeats the checksum that it has compared with. What does not know checksums tells an MD5 at least.
    repeated = told.get("x-amz-checksum-crc32")
    if repeated is None:
        if hashlib.md5(content, usedforsecurity=False).hexdigest() not in told.get("etag", ""):
            raise UnsureError
    elif repeated != crc:
        raise UnsureError
    return len(content)


class Room:
    """So many bytes, of which threads take some for a while, and wait where there are too few."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size_bytes: int) -> Iterator[None]:
        """At most as many as there are in all."""
        with self._changed:
            while self._left < size_bytes:
                self._changed.wait()
            self._left -= size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._left += size_bytes
                self._changed.notify_all()
