"""What is wrong with a job's data before it starts, and what its shards cost in time. Pure."""

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from provision.model import count as count_noun
from train.job.survey import Data, Refusal

# Scripts of this project that read the .rec files of train/.
RECORD_SCRIPTS = ("train_cifar10.py", "train_imagenet.py")
ARCHIVED = "InvalidObjectState"
UNEVEN = 1.2
"""How much more than its share a node may fetch, or a shard may have, before it is worth a word."""
MIB = 1 << 20
COSTS_BYTES = 64 * MIB
"""Fetching fewer is not noticed beside the start of a job."""
PER_NODE = 16
"""A node fetches up to one shard more than its share: with so many, that is a sixteenth."""
LEAST_PER_NODE = 4
LEAST_BYTES = MIB
MOST_BYTES = 1 << 30


class Fault(NamedTuple):
    """What is wrong with a job, and what to do. certain: of its data: whatever reads [data] url cannot work."""

    said: str
    hint: str = ""
    certain: bool = True


def find_faults(
    data: Data, url: str, *, region: str | None, script: str | None, nodes_credentials: bool
) -> Iterator[Fault]:
    """region: the nodes'. script: this project's own that is run. nodes_credentials: the job has not this machine's."""
    if not data.bucket_exists:
        yield Fault(f'data.url = "{url}": there is no such bucket', f"cluster data put --create-bucket FOLDER {url}")
        return
    if None not in (data.region, region) and data.region != region:
        yield Fault(
            f'data.url = "{url}": its bucket is in {data.region}, and the nodes, in {region}, ask the S3 of their own '
            "region, which does not have it",
            f'a cluster with [provision] region = "{data.region}", or the data in a bucket of {region}: cluster data '
            "get, then cluster data put --create-bucket",
            certain=data.at_aws,
        )
    if data.refused is not None and (not nodes_credentials or data.refused.code == ARCHIVED):
        yield _refused(data.refused, url)
    put = f"cluster data put FOLDER {url}"
    if data.complete and not data.objects:
        yield Fault(f'data.url = "{url}": there is nothing to read', put)
    elif data.complete and not data.in_train and script in RECORD_SCRIPTS:
        yield Fault(f'data.url = "{url}": {script} reads the .rec files of its train/: there are none', put)
    if data.not_records is not None:
        yield Fault(
            f"{data.not_records} is no RecordIO file: it does not begin as every one does",
            "put it again; cluster data pack makes such files",
            certain=script in RECORD_SCRIPTS,
        )
    if data.cut_short is not None:
        yield Fault(
            f"{url.rstrip('/')}/{data.cut_short} is no whole .rec file: its size is no multiple of four bytes",
            "cluster data info tells where it ends; put it again",
            certain=script in RECORD_SCRIPTS,
        )
    if data.sizes and data.others and (script is None or script in RECORD_SCRIPTS):
        yield _others(data, url, script=script)


def _refused(refused: Refusal, url: str) -> Fault:
    if refused.code == ARCHIVED:
        return Fault(
            f"{refused.where} is archived (Glacier), and cannot be read: {refused.words}",
            "aws s3api restore-object, or put it again",
        )
    return Fault(
        f'data.url = "{url}": with your credentials, which the job gets, {refused.where} cannot be {refused.what}: '
        f"{refused.code}: {refused.words}",
        "cluster iam-policy prints what they need; or [provision] instance_profile, for credentials of the nodes' own",
    )


def _others(data: Data, url: str, *, script: str | None) -> Fault:
    first, more = data.others[0], len(data.others) - 1
    named = f"{first} and {more} more" if more else first
    # A .rec file may also be called "part-0"; what has another ending is none.
    known = any("." in name for name in data.others)
    return Fault(
        f"{url.rstrip('/')}/{data.folder} has {named} beside its .rec files: whoever reads the folder has MXNet read "
        "all that is in it as records",
        "move what is no records elsewhere, or name the files: --data-train 's3://.../a.rec;s3://.../b.rec'",
        certain=script in RECORD_SCRIPTS and known,
    )


def find_costs(data: Data, url: str, *, workers: Mapping[str, int], script: str | None, staged: bool) -> Iterator[str]:
    """What the shards' number and sizes cost. workers: how many each node has, in the order of their ranks.

    MXNet cuts the row of all shards' bytes into as many equal parts as there are workers. A worker that reads natively
    reads its part; for one whose data is staged, whole shards are fetched.
    """
    per_node = [number for number in workers.values() if number]
    count, nodes = sum(per_node), len(per_node)
    shards = len(data.sizes) or data.in_train or data.records
    if not data.complete or not shards or (script is not None and script not in RECORD_SCRIPTS):
        return
    where = f"{url.rstrip('/')}/{data.folder}"
    split = render_split(url, data.folder, choose_count(sum(data.sizes), workers=count, nodes=nodes))
    if shards < count:
        does = "nodes fetch the same files" if staged and nodes > 1 else "each reads its part of the bytes of a file"
        yield f"{where} has {count_noun(shards, '.rec file')} for {count} workers: {does} ({split})"
    elif staged and are_uneven(data.sizes, per_node):
        times, _ = find_excess(data.sizes, per_node)
        yield (
            f"{where} has {shards} .rec files of {min(data.sizes) / MIB:.1f} MiB to {max(data.sizes) / MIB:.1f} MiB: "
            f"they cannot be shared out evenly, and a node fetches {times:.1f} times its share ({split})"
        )


# -- shards: how they fall on nodes, and how many there should be ------------------------------------------------------


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
