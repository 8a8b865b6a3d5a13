"""What of a row of shards a worker reads, and what a node's workers will probably read. Pure.

MXNet's readers take the shards of `path_imgrec` as one row of bytes, cut it into num_parts equal pieces, and move both
ends of a piece on to the next beginning of a record, within their shard
(https://github.com/dmlc/dmlc-core/blob/main/src/io/input_split_base.cc, ResetPartition).
"""

from __future__ import annotations

import bisect
import itertools
import posixpath
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from train.node.s3 import Entry

ALIGN_BYTES = 4  # of RecordIO
MOST_BESIDE_BYTES = 64 << 20  # of files that are no records, such as indexes, fetched before they are asked for
TRAINING = "train"
VALIDATION = ("val", "validation", "test")


class Kept(NamedTuple):
    """What lies in the cache; they sort by their last use."""

    used_at: float
    size_bytes: int
    key: str
    stays: bool


def find_touched(sizes: Sequence[int], index: int, count: int, shuffle_mib: int = 0) -> list[int]:
    """The positions of the shards that part `index` of `count` reads from, in order; sizes: of all, in bytes.

    shuffle_mib: ImageRecordIter's shuffle_chunk_size.
    """
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    step = (total + count - 1) // count
    step = (step + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES
    begin, end = min(step * index, total), min(step * (index + 1), total)
    if shuffle_mib:
        # Then a part is cut further (iter_image_recordio_2.cc), every piece rounded up, which moves its end.
        pieces = 1.1 * total / (shuffle_mib << 20) + count
        end = min(end + int(2 * ALIGN_BYTES * (pieces + count)), total)
    if begin >= end:
        return []
    # Where `end` lies inside a shard, the record that begins before it is read to its end, there.
    return list(range(bisect.bisect_right(ends, begin), bisect.bisect_left(ends, end) + 1))


def guess(url: str, entries: Iterable[Entry], ranks: Sequence[int], count: int) -> list[Entry]:
    """The entries that workers of these ranks, of `count`, will probably read below [data] url, the first first.

    entries: all that is there.
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
    beside = [entry for entry in rest if not entry.url.endswith(".rec")]
    if sum(entry.size_bytes for entry in beside) > MOST_BESIDE_BYTES:
        rest = [entry for entry in rest if entry.url.endswith(".rec")]
    return found + rest


def _has_records(entries: Iterable[Entry]) -> bool:
    return any(entry.url.endswith(".rec") for entry in entries)


def choose_leaving(kept: Iterable[Kept], needed_bytes: int, most_bytes: int) -> list[str] | None:
    """The keys of what is to go so that `needed_bytes` more fit; None where they cannot. kept: all that is there."""
    kept = sorted(kept)
    excess = sum(item.size_bytes for item in kept) + needed_bytes - most_bytes
    leaving = []
    for item in kept:
        if excess > 0 and not item.stays:
            leaving.append(item.key)
            excess -= item.size_bytes
    return leaving if excess <= 0 else None
