"""Compares the content of local files with that of objects in S3, by the digests that S3 keeps."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from isal.isal_zlib import crc32_combine

from foundation.thread_pool import Check, map_in_threads
from node.staging import integrity
from train.s3.connection import Connection
from train.s3.transfer_plan import Download, Upload
from train.s3.url import S3Object

Headers = Mapping[str, str]
Transfer = TypeVar("Transfer", Upload, Download)
COMPARED_AT_ONCE = 8
"""Files compared at once: some wait for S3, some for a disk."""


def _is_same(connection: Connection, path: Path, item: S3Object | Download, go_on: Check) -> bool:
    """Whether a file and an object are known to have the same content. Raises OSError, ClusterError or a subclass."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        if os.fstat(descriptor).st_size != item.size_bytes or os.pread(descriptor, 1, item.size_bytes):
            return False
        url = item.source if isinstance(item, Download) else item.url
        ask = partial(connection.find_headers, url)
        return bool(verify_open(descriptor, size_bytes=item.size_bytes, etag=item.etag, find_headers=ask, go_on=go_on))


def verify_open(
    descriptor: int,
    *,
    size_bytes: int,
    etag: str,
    find_headers: Callable[..., Headers],
    go_on: Check,
    headers: Headers | None = None,
) -> bool | None:
    """Whether an open file begins with the `size_bytes` bytes of an object; None if S3 keeps no digest to compare with.

    etag: of the object, from a listing. find_headers: asks S3 for the object's headers; headers: if that was done.
    go_on: called regularly; raises to stop. Raises OSError, and what find_headers and go_on raise.
    """
    if headers is None:  # most ETags are MD5s, and the listing has them
        check = integrity.find_check({"ETag": etag}, size_bytes)
        if check is not None and check.matches(descriptor, go_on):
            return True
        headers = find_headers()
    check = integrity.find_check(headers, size_bytes)
    if check is None:
        return None
    if not check.certain:
        if check.matches(descriptor, go_on):
            return True
        first = find_headers(part=1)
        check = integrity.find_check(first, size_bytes, part_bytes=int(first["content-length"]))
    return None if check is None else check.matches(descriptor, go_on)


class RangeDigests:
    """Compares a whole object by the digests of its ranges, which are calculated while they arrive."""

    def __init__(self, check: integrity.Check, range_bytes: int) -> None:
        self._check = check
        self._range_bytes = range_bytes

    def begin(self) -> integrity.Digest:
        """A new digest for one range."""
        return integrity.new_digest(self._check.algorithm)

    def match(self, digests: Sequence[bytes]) -> bool:
        """Whether these digests of the ranges, in order, match the digest that S3 keeps of the object."""
        if self._check.part_sizes:
            return self._check.matches_parts(digests)
        crc, left = 0, self._check.size_bytes
        for digest in digests:
            crc = crc32_combine(crc, int.from_bytes(digest, "big"), min(self._range_bytes, left))
            left -= self._range_bytes
        return self._check.is_digest(crc.to_bytes(4, "big"))


def find_digests(headers: Headers, size_bytes: int, range_bytes: int) -> RangeDigests | None:
    """How to compare an object by the digests of ranges of this size; None if that is impossible. Pure.

    It is possible with a CRC-32 of all bytes, because the CRCs of ranges can be combined, or if the object was sent in
    parts of this size.
    """
    check = integrity.find_check(headers, size_bytes)
    if check is None:
        return None
    can_combine = check.algorithm == "crc32" and not check.part_sizes
    return RangeDigests(check, range_bytes) if can_combine or check.part_bytes == range_bytes else None


def choose_uploads(
    connection: Connection, planned: Sequence[Upload], there: Sequence[S3Object]
) -> tuple[tuple[Upload, ...], tuple[Upload, ...]]:
    """Returns (to copy, unchanged), by content. Raises OSError for an unreadable file, ClusterError or a subclass."""
    objects = {item.url: item for item in there}

    def is_there(upload: Upload, go_on: Check) -> bool:
        item = objects.get(upload.destination)
        return item is not None and _is_same(connection, upload.source, item, go_on)

    return _part(planned, is_there) if there else (tuple(planned), ())


def choose_downloads(
    connection: Connection, planned: Sequence[Download]
) -> tuple[tuple[Download, ...], tuple[Download, ...]]:
    """Returns (to copy, unchanged), by content. Raises as choose_uploads does."""

    def is_there(download: Download, go_on: Check) -> bool:
        path = download.destination
        return path.is_file() and _is_same(connection, path, download, go_on)

    return _part(planned, is_there)


def _part(
    planned: Sequence[Transfer], is_there: Callable[[Transfer, Check], bool]
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    same = list(zip(planned, map_in_threads(is_there, planned, threads=COMPARED_AT_ONCE), strict=True))
    return tuple(item for item, there in same if not there), tuple(item for item, there in same if there)
