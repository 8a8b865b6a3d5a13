"""The shards that a worker reads, and the objects to evict. Pure.

MXNet's readers concatenate the shards of `path_imgrec`, cut the bytes into num_parts equal pieces, and move both ends
of a piece to the next beginning of a record in the same shard
(https://github.com/dmlc/dmlc-core/blob/main/src/io/input_split_base.cc, ResetPartition).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ALIGN_BYTES = 4  # of RecordIO


class Kept(NamedTuple):
    """An object in the cache; sorts by last use."""

    used_at: float
    size_bytes: int
    key: str
    stays: bool


def find_touched(sizes: Sequence[int], index: int, count: int, shuffle_mib: int = 0) -> list[int]:
    """Returns the sorted positions of the shards from which part `index` of `count` reads.

    sizes: those of all shards, in bytes.

    shuffle_mib: ImageRecordIter's shuffle_chunk_size.
    """
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    step = (total + count - 1) // count
    step = (step + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES
    begin, end = min(step * index, total), min(step * (index + 1), total)
    if shuffle_mib:
        # A part is then cut further (iter_image_recordio_2.cc); each piece is rounded up, which moves the part's end.
        pieces = 1.1 * total / (shuffle_mib << 20) + count
        end = min(end + int(2 * ALIGN_BYTES * (pieces + count)), total)
    if begin >= end:
        return []
    # If `end` is inside a shard, the reader reads the record that begins before it to its end, in the same shard.
    return list(range(bisect.bisect_right(ends, begin), bisect.bisect_left(ends, end) + 1))


def choose_evicted(kept: Iterable[Kept], needed_bytes: int, most_bytes: int) -> list[str] | None:
    """Returns the keys to evict so that `needed_bytes` more fit; None if they cannot. kept: everything in the cache."""
    kept = sorted(kept)
    excess = sum(item.size_bytes for item in kept) + needed_bytes - most_bytes
    evicted = []
    for item in kept:
        if excess > 0 and not item.stays:
            evicted.append(item.key)
            excess -= item.size_bytes
    return evicted if excess <= 0 else None
