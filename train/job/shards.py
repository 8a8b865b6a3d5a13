"""How a job's shards fall on its nodes, and how many there should be instead. Pure."""

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

UNEVEN = 1.2
"""How much more than its share a node may fetch, or a shard may have, before it is worth a word."""
COSTS_BYTES = 64 << 20
"""What it takes to fetch fewer than these is not noticed beside the start of a job."""
PER_NODE = 16
"""A node fetches up to one shard more than its share: with so many, that is a sixteenth."""
LEAST_PER_NODE = 4
LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30


def find_fetched(sizes: Sequence[int], workers: Sequence[int]) -> tuple[int, ...]:
    """How many bytes each node fetches that stages what its workers read, whole shards.

    sizes: of the shards, in order, in bytes. workers: how many each node has; their parts are one after the other, as
    ps-lite numbers workers host by host. MXNet cuts the row of all shards' bytes into equal parts.
    """
    ends = tuple(accumulate(sizes))
    total, count = ends[-1], sum(workers)
    cuts = [total * rank // count for rank in accumulate(workers, initial=0)]
    return tuple(
        sum(sizes[bisect_right(ends, begin) : bisect_left(ends, end) + 1]) if begin < end else 0
        for begin, end in pairwise(cuts)
    )


def find_excess(sizes: Sequence[int], workers: Sequence[int]) -> tuple[float, int]:
    """How many times its share the node fetches that fetches the most beyond it, and how many bytes more these are."""
    if not sum(sizes) or not sum(workers):
        return 1.0, 0
    shares = [sum(sizes) * count / sum(workers) for count in workers if count]
    fetched = find_fetched(sizes, [count for count in workers if count])
    return max((got / share, int(got - share)) for got, share in zip(fetched, shares, strict=True))


def are_uneven(sizes: Sequence[int], workers: Sequence[int]) -> bool:
    """Whether to fetch whole shards costs a node more than a fifth more than its share, and it would be noticed."""
    times, more_bytes = find_excess(sizes, workers)
    of_different_size = max(sizes, default=0) * len(sizes) > UNEVEN * sum(sizes)
    return times > UNEVEN and (more_bytes >= COSTS_BYTES or of_different_size)


def choose_count(total_bytes: int, *, workers: int, nodes: int) -> int:
    """How many shards there should be: as many for each worker, none too small to be worth a request, none too large.

    total_bytes: of all records.
    """
    wanted = max(min(PER_NODE * nodes, total_bytes // LEAST_BYTES), total_bytes // MOST_BYTES, LEAST_PER_NODE * nodes)
    return -(-wanted // workers) * workers


def render_split(url: str, folder: str, count: int) -> str:
    """The command that makes so many of the .rec files of a folder below [data] url, and what else is to be done."""
    base = url.rstrip("/")
    is_bucket = "/" not in base.removeprefix("s3://")
    new = f"{base}/{count}-shards" if is_bucket else f"{base}-{count}-shards"
    command = shlex.join(["cluster", "data", "split", f"{base}/{folder}", f"{new}/{folder}", "--shards", str(count)])
    beside = f", what lies beside {folder} too" if folder else ""
    return f'{command}{beside}, and [data] url = "{new}/"'
