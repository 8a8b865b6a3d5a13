"""Reads the same records of a file or folder, on this machine or in S3, as MXNet's ImageRecordIter, in Python.

    from mxnet_cluster.records import decode_image, iterate_records
    for payload in iterate_records("s3://bucket/train/", num_parts=4, part_index=0): ...

This module is for other frameworks. It does not need MXNet, and works on the user's machine and on the nodes.
decode_image decodes a payload. MXNet reads a local folder in the order of its file system; this module sorts the names,
as S3 does.

MXNet divides records among workers as follows. ImageRecordIter concatenates its files and cuts the bytes into
`num_parts` pieces of equal length, a multiple of four; the last ones may be shorter or empty. Both ends of a piece then
move to the next beginning of a record in the same file. So a record belongs to the piece in which it begins.

Source: dmlc-core, src/io/input_split_base.cc (ResetPartition) and src/io/recordio_split.cc (SeekRecordBegin).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

from mxnet_cluster.errors import ClusterError
from mxnet_cluster.recordio import ImageRecord, broken, decode_image, decode_record, find_head, scan_records
from mxnet_cluster.sources import Shard, Sources

__all__ = ["ImageRecord", "decode_image", "iterate_records"]

_ALIGN = 4
_SEARCH_BYTES = 2**16


@dataclass(frozen=True)
class Range:
    """The records of file number `file` that begin at a byte from `begin` up to, but not including, `end`."""

    file: int
    begin: int
    end: int


def iterate_records(url: str, *, num_parts: int = 1, part_index: int = 0, region: str | None = None) -> Iterator[bytes]:
    """Returns an iterator over the payloads of the records in one part of `url`, in their order.

    url: as in ImageRecordIter's path_imgrec, a file, a folder (all non-empty files directly in it), or several of
    these, separated by ";". Each record is in exactly one of the `num_parts` parts.

    Reads ahead from S3, in up to five ranges of 8 MiB, with retries. Raises NotFoundError if there are no files, and
    ValueError for an invalid part. Raises ClusterError (mxnet_cluster/errors.py) with the file and the byte at which it
    is truncated or not RecordIO, or with the reason why S3 cannot be read.
    """
    sources = Sources(region=region)
    shards = sources.find([word for word in url.split(";") if word], suffix="")
    for shard in shards:
        if shard.size_bytes % 4:
            raise ClusterError(
                f"{shard.name}: {shard.size_bytes} bytes, not a multiple of four, so it is not a RecordIO file",
                hint="every file directly in the folder is read as records: move other files elsewhere",
            )
    ranges = find_part([shard.size_bytes for shard in shards], num_parts, part_index)
    return _iterate(sources, shards, ranges)


def find_part(sizes: Sequence[int], num_parts: int, part_index: int) -> tuple[Range, ...]:
    """Returns the ranges, in order, that part `part_index` (from 0) of `num_parts` reads.

    sizes: the sizes of the files in bytes, which must be multiples of four, as in MXNet.
    Raises ValueError for an invalid part.
    """
    if not 0 <= part_index < num_parts:
        raise ValueError(f"there is no part {part_index} of {num_parts}")
    total = sum(sizes)
    step = -(-total // num_parts)
    step += -step % _ALIGN
    begin, end = min(step * part_index, total), min(step * (part_index + 1), total)
    ranges = []
    for file, (stop, size) in enumerate(zip(accumulate(sizes), sizes)):
        start = stop - size
        low, high = max(begin, start), min(end, stop)
        if low < high:
            ranges.append(Range(file=file, begin=low - start, end=high - start))
    return tuple(ranges)


def count_part(starts: Sequence[Sequence[int]], ranges: Sequence[Range]) -> int:
    """Returns the number of records in these ranges. starts: the sorted offsets of the records of each file."""
    return sum(bisect_left(starts[it.file], it.end) - bisect_left(starts[it.file], it.begin) for it in ranges)


def _iterate(sources: Sources, shards: tuple[Shard, ...], ranges: tuple[Range, ...]) -> Iterator[bytes]:
    for part in ranges:
        shard = shards[part.file]
        with sources.open(shard, begin=part.begin, end=part.end) as file:
            yield from _records_from(file, part, shard)


def _records_from(file: BinaryIO, part: Range, shard: Shard) -> Iterator[bytes]:
    """Yields the payloads of the records that begin in the range. The file must be at the beginning of the range."""
    # Except at 0, this may be inside a record, which belongs to the previous part.
    offset = _seek_head(file, part.begin) if part.begin else 0
    records = scan_records(file, name=shard.name, offset=offset)
    while offset < min(part.end, shard.size_bytes):
        record = next(records, None)
        if record is None:
            raise broken(shard.name, offset, f"the file ends here, but it had {shard.size_bytes} bytes")
        yield decode_record(record)
        offset += len(record)


def _seek_head(file: BinaryIO, offset: int) -> int:
    """Moves the file from `offset` to the next beginning of a record, or to its end. Returns the new offset."""
    window = b""
    while more := file.read(_SEARCH_BYTES):
        window += more
        at = find_head(window)
        if at is not None:
            return file.seek(offset + at)
        # The last four bytes may be a magic number whose length follows.
        offset += len(window) - 4
        window = window[-4:]
    return offset + len(window)
