"""The shards that a worker reads, those that a node's workers will probably read, and those to evict. Pure.

MXNet's readers concatenate the shards of `path_imgrec`, cut the bytes into num_parts equal pieces, and move both ends
of a piece to the next beginning of a record in the same shard
(https://github.com/dmlc/dmlc-core/blob/main/src/io/input_split_base.cc, ResetPartition).
"""

from __future__ import annotations

import bisect
import itertools
import posixpath
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from node.staging.s3 import Entry

ALIGN_BYTES = 4  # of RecordIO
MOST_OTHER_BYTES = 64 << 20  # the most to prefetch of files other than records, such as indexes
TRAINING = "train"
VALIDATION = ("val", "validation", "test")


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


def guess(url: str, entries: Iterable[Entry], ranks: Sequence[int], count: int) -> list[Entry]:
    """Returns the entries that workers with these ranks, of `count`, will probably read below [data] url, in order.

    entries: all objects below the URL.
    """
    folders: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.size_bytes:
            folders.setdefault(posixpath.dirname(entry.url[len(url) :]), []).append(entry)
    training = next((name for name in (TRAINING, "") if _has_records(folders.get(name, []))), None)
    found: list[Entry] = []
    if training is not None:
        row = folders[training]
        sizes = [entry.size_bytes for entry in row]
        parts = [find_touched(sizes, rank, count) for rank in ranks]
        found += [row[at] for at in sorted(set(itertools.chain.from_iterable(parts)))]
    rest = [entry for name in ("", *VALIDATION) if name != training for entry in folders.get(name, [])]
    others = [entry for entry in rest if not entry.url.endswith(".rec")]
    if sum(entry.size_bytes for entry in others) > MOST_OTHER_BYTES:
        rest = [entry for entry in rest if entry.url.endswith(".rec")]
    return found + rest


def _has_records(entries: Iterable[Entry]) -> bool:
    return any(entry.url.endswith(".rec") for entry in entries)


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
