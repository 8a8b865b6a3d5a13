"""Describes shards, for `cluster data info`.

Reads the beginning of every record. Of a shard in S3 with an index, reads only the index and the last record, unless
all are requested.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from foundation.errors import ClusterError
from mxnet_cluster.recordio import broken, decode_record, find_labels, scan_records
from mxnet_cluster.records import count_part, find_part
from mxnet_cluster.sources import Shard, Sources
from train.s3.url import is_s3

HEAD_BYTES = 4096  # of a record, which usually has its labels there


class ShardInfo(Struct, frozen=True, kw_only=True):
    """starts: the sorted offsets of its records. labels: the number of records by labels; None if they were not read.

    without_labels: records that are not images.
    """

    name: str
    size_bytes: int
    starts: Sequence[int]
    labels: Counter[tuple[float, ...]] | None
    without_labels: int

    @property
    def record_sizes(self) -> list[int]:
        """The size of each record in the file, in bytes."""
        ends = [*self.starts, self.size_bytes][1:]
        return [end - start for start, end in zip(self.starts, ends, strict=True)]


def describe_shards(
    sources: Sources, shards: Sequence[Shard], *, full: bool, watch: Callable[[int], None]
) -> tuple[ShardInfo, ...]:
    """Describes the shards. full: read every record, also in S3. watch: called with the size of each shard.

    Raises ClusterError that names the file, and the byte at which it is broken or that its index does not match.
    """
    found = []
    for shard in shards:
        index = sources.read_index(shard) if is_s3(shard.name) and not full else None
        found.append(_scan(sources, shard) if index is None else _trust(sources, shard, index))
        watch(shard.size_bytes)
    return tuple(found)


def share_out(shards: Sequence[ShardInfo], workers: int) -> list[tuple[int, int]]:
    """The share of each worker, by MXNet's rule: the number of records, and their size in bytes."""
    sizes = [shard.size_bytes for shard in shards]
    starts = [shard.starts for shard in shards]
    parts = [find_part(sizes, workers, rank) for rank in range(workers)]
    return [(count_part(starts, part), sum(it.end - it.begin for it in part)) for part in parts]


def _scan(sources: Sources, shard: Shard, most: int | None = HEAD_BYTES) -> ShardInfo:
    starts = array("Q")
    labels: Counter[tuple[float, ...]] = Counter()
    without = 0
    with sources.open(shard) as file:
        end = 0
        for record in scan_records(file, name=shard.name, most=most):
            starts.append(end)
            end = file.tell()
            payload = decode_record(record)[:most]
            found = find_labels(payload)
            if found is None and len(payload) == most:
                return _scan(sources, shard, None)
            if found is None:
                without += 1
            else:
                labels[found] += 1
    return ShardInfo(name=shard.name, size_bytes=shard.size_bytes, starts=starts, labels=labels, without_labels=without)


def _trust(sources: Sources, shard: Shard, index: bytes) -> ShardInfo:
    """The shard as its index describes it; the index must begin at 0, and its last record must end with the file."""
    try:
        starts = array("Q", sorted(int(line.split(b"\t")[1]) for line in index.splitlines()))
    except (ValueError, IndexError, OverflowError):
        raise ClusterError(f"{shard.name}: its .idx file is not an index", hint="--full ignores it") from None
    if not starts or starts[0] or starts[-1] >= shard.size_bytes:
        raise ClusterError(f"{shard.name}: its index (.idx) belongs to another file", hint="--full ignores it")
    with sources.open(shard, begin=starts[-1]) as file:
        last = next(scan_records(file, name=shard.name, offset=starts[-1]))
    end = starts[-1] + len(last)
    if end != shard.size_bytes:
        raise broken(shard.name, end, "its index (.idx) ends here, the file does not")
    return ShardInfo(name=shard.name, size_bytes=shard.size_bytes, starts=starts, labels=None, without_labels=0)
