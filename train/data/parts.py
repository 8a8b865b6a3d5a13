"""How MXNet shares records out among workers. Pure.

ImageRecordIter takes its files as one row of bytes, in their order, and cuts it into `num_parts` pieces of equal
length, a multiple of four; the last ones may be shorter or empty. Both ends of a piece are then moved on to the next
beginning of a record, within the file where they lie. So a record belongs to the piece in which it begins, and to no
other.

Source: dmlc-core, src/io/input_split_base.cc (ResetPartition) and src/io/recordio_split.cc (SeekRecordBegin).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_ALIGN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The records of file number `file` that begin in the bytes from `begin` up to `end`, without it."""

    file: int
    begin: int
    end: int


def find_part(sizes: Sequence[int], num_parts: int, part_index: int) -> tuple[Range, ...]:
    """What part `part_index` (from 0) of `num_parts` reads of files of these sizes in bytes, in order.

    Every file's size must be a multiple of four, as MXNet wants it too. Raises ValueError for a part that is none.
    """
    if not 0 <= part_index < num_parts:
        raise ValueError(f"there is no part {part_index} of {num_parts}")
    total = sum(sizes)
    step = -(-total // num_parts)
    step += -step % _ALIGN
    begin, end = min(step * part_index, total), min(step * (part_index + 1), total)
    ranges = []
    for file, (stop, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
        start = stop - size
        low, high = max(begin, start), min(end, stop)
        if low < high:
            ranges.append(Range(file=file, begin=low - start, end=high - start))
    return tuple(ranges)


def count_part(starts: Sequence[Sequence[int]], ranges: Sequence[Range]) -> int:
    """How many records are in these ranges; `starts` are the sorted offsets of the records of each file."""
    return sum(bisect_left(starts[it.file], it.end) - bisect_left(starts[it.file], it.begin) for it in ranges)
