"""Whether a local file and an object in S3 have the same content: by what S3 keeps about it, without reading it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train.node import integrity
from train.s3.section import Section

Headers = Mapping[str, str]
COMPARE_FIRST = 4
COMPARE_MOST = 16
"""Files at a time: by so many threads, and where these wait for S3 or a disk."""
_SIDE_BY_SIDE = 4
_MIB = 2**20


def is_same(path: Path, *, size_bytes: int, etag: str, find_headers: Callable[..., Headers]) -> bool | None:
    """Whether they are the same; None where S3 says nothing that can be compared.

    size_bytes, etag: the object's, as a listing has them. find_headers: asks S3 for all that it says about it. Raises
    OSError, and as find_headers does.
    """
    if path.stat().st_size != size_bytes:
        return False
    # Most ETags are MD5s, which the listing has already.
    check = integrity.find_check({"ETag": etag}, size_bytes)
    if check is not None and feed(check, path):
        return True
    check = find_certain_check(find_headers, size_bytes)
    return None if check is None else feed(check, path)


def find_certain_check(find_headers: Callable[..., Headers], size_bytes: int, told: Headers | None = None) -> Any:
    """The best way to verify the object. told: what S3 said already. Raises as find_headers does."""
    check = integrity.find_check(told if told is not None else find_headers(), size_bytes)
    if check is None or check.certain:
        return check
    first = find_headers(part=1)
    return integrity.find_check(first, size_bytes, part_bytes=int(first["content-length"]))


def feed(check: Any, path: Path) -> bool:
    """Whether the file's content is what the check wants. Raises OSError."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - slow to import: for who compares

    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != check.size_bytes:
            return False
        if check.cut is None:
            for block in Section(file.fileno(), 0, size_bytes, _go_on).blocks():
                check.feed(block)
        else:
            step = 8 * _MIB if check.cut == integrity.ANY else check.cut

            def feed_piece(begin: int) -> None:
                length = min(step, size_bytes - begin)
                piece = check.piece(begin, length)
                for block in Section(file.fileno(), begin, length, _go_on).blocks():
                    piece.feed(block)
                piece.finish()

            begins = range(0, max(size_bytes, 1), step)
            with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(begins))) as pool:
                for _ in pool.map(feed_piece, begins):
                    pass
        return bool(check.matches())


def _go_on() -> None:
    """Nobody stops it."""
