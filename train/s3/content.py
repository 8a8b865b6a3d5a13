"""Whether a local file and an object in S3 have the same content: by what S3 keeps about it, without reading it."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from train.node import integrity
from train.s3.crew import Check, Crew
from train.s3.section import Section, has_more

Headers = Mapping[str, str]
COMPARE_FIRST = 4
COMPARE_MOST = 16
"""Files at a time: by so many threads, and where these wait for S3 or a disk."""
_HELPERS = threading.BoundedSemaphore(3)
"""Threads that read pieces of large files beside each file's own: so many in all, however many files there are."""
_MIB = 2**20


def _go_on() -> None:
    """Nobody stops it."""


def is_same(
    path: Path, *, size_bytes: int, etag: str, find_headers: Callable[..., Headers], go_on: Check
) -> bool | None:
    """Whether they are the same; None where S3 says nothing that can be compared.

    size_bytes, etag: the object's, as a listing has them. find_headers: asks S3 for all that it says about it. Raises
    OSError, and as find_headers and go_on do.
    """
    if path.stat().st_size != size_bytes:
        return False
    # Most ETags are MD5s, which the listing has already.
    check = integrity.find_check({"ETag": etag}, size_bytes)
    if check is not None and feed(check, path, go_on):
        return True
    check = find_certain_check(find_headers, size_bytes)
    return None if check is None else feed(check, path, go_on)


def find_certain_check(find_headers: Callable[..., Headers], size_bytes: int, told: Headers | None = None) -> Any:
    """The best way to verify the object. told: what S3 said already. Raises as find_headers does."""
    check = integrity.find_check(told if told is not None else find_headers(), size_bytes)
    if check is None or check.certain:
        return check
    first = find_headers(part=1)
    return integrity.find_check(first, size_bytes, part_bytes=int(first["content-length"]))


def feed(check: Any, path: Path, go_on: Check = _go_on) -> bool:
    """Whether the file's content is what the check wants. go_on: called before every block, to be stopped by.

    Raises OSError, and as go_on does.
    """
    with path.open("rb") as file:
        return feed_open(check, file.fileno(), go_on)


def feed_open(check: Any, descriptor: int, go_on: Check = _go_on) -> bool:
    """The same of an open file."""
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes != check.size_bytes or has_more(descriptor, size_bytes):
        return False
    if check.cut is None:
        for block in Section(descriptor, 0, size_bytes, go_on).blocks():
            check.feed(block)
    else:
        _feed_pieces(check, descriptor, size_bytes, go_on)
    return bool(check.matches())


def _feed_pieces(check: Any, descriptor: int, size_bytes: int, go_on: Check) -> None:
    step = 8 * _MIB if check.cut == integrity.ANY else check.cut
    begins = range(0, max(size_bytes, 1), step)

    def feed_piece(begin: int) -> None:
        length = min(step, size_bytes - begin)
        piece = check.piece(begin, length)
        for block in Section(descriptor, begin, length, go_on).blocks():
            piece.feed(block)
        piece.finish()

    with _find_helpers(len(begins) - 1) as helpers:
        if helpers:
            Crew(1 + helpers).run(partial(feed_piece, begin) for begin in begins)
            go_on()  # who was stopped has left the crew without a word
            return
        for begin in begins:
            feed_piece(begin)


@contextmanager
def _find_helpers(wanted: int) -> Iterator[int]:
    """As many as there are just now."""
    found = 0
    try:
        while found < wanted and _HELPERS.acquire(blocking=False):
            found += 1
        yield found
    finally:
        for _ in range(found):
            _HELPERS.release()
