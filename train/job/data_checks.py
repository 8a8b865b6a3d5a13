"""What is wrong with a job's data, before anything starts, and what of it costs time. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from train.job.shards import are_uneven, choose_count, find_excess, render_split
from train.job.survey import Data, Refusal

# Scripts of this project that read the .rec files of train/.
RECORD_SCRIPTS = ("train_cifar10.py", "train_imagenet.py")
ARCHIVED = "InvalidObjectState"


class Fault(NamedTuple):
    """What is wrong, and what to do. certain: whatever reads [data] url cannot work."""

    said: str
    hint: str
    certain: bool = True


def find_faults(
    data: Data, url: str, *, region: str | None, script: str | None, nodes_credentials: bool
) -> Iterator[Fault]:
    """region: the nodes'. script: this project's own that is run. nodes_credentials: the job has not this machine's."""
    if not data.bucket_exists:
        yield Fault(f'data.url = "{url}": there is no such bucket', f"cluster data put --create-bucket FOLDER {url}")
        return
    yield from _region(data, url, region=region)
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


def _region(data: Data, url: str, *, region: str | None) -> Iterator[Fault]:
    if data.region is None or region is None or data.region == region:
        return
    yield Fault(
        f'data.url = "{url}": its bucket is in {data.region}, and the nodes, in {region}, ask the S3 of their own '
        "region, which does not have it",
        f'a cluster with [provision] region = "{data.region}", or the data in a bucket of {region}: cluster data get, '
        "then cluster data put --create-bucket",
        certain=data.at_aws,
    )


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
    where = f"{url.rstrip('/')}/{data.folder}"
    # A .rec file may also be called "part-0"; what has another ending is none.
    known = any("." in name for name in data.others)
    return Fault(
        f"{where} has {named} beside its .rec files: whoever reads the folder has MXNet read all that is in it as "
        "records",
        "move what is no records elsewhere, or name the files: --data-train 's3://.../a.rec;s3://.../b.rec'",
        certain=script in RECORD_SCRIPTS and known,
    )


def find_costs(data: Data, url: str, *, workers: Mapping[str, int], script: str | None, staged: bool) -> Iterator[str]:
    """What the shards' number and sizes cost. workers: how many each node has, in the order of their ranks.

    MXNet cuts the row of all shards' bytes into as many equal parts as there are workers. A worker that reads natively
    reads its part; for one whose data is staged, whole shards are fetched.
    """
    count, nodes = sum(workers.values()), sum(number > 0 for number in workers.values())
    shards = len(data.sizes) or data.in_train or data.records
    if not data.complete or not shards or (script is not None and script not in RECORD_SCRIPTS):
        return
    where = f"{url.rstrip('/')}/{data.folder}"
    split = render_split(url, data.folder, choose_count(sum(data.sizes), workers=count, nodes=nodes))
    per_node = [number for number in workers.values() if number]
    if shards < count:
        does = "nodes fetch the same files" if staged and nodes > 1 else "each reads its part of the bytes of a file"
        yield f"{where} has {_count(shards, '.rec file')} for {count} workers: {does} ({split})"
    elif staged and are_uneven(data.sizes, per_node):
        times, _ = find_excess(data.sizes, per_node)
        yield (
            f"{where} has {shards} .rec files of {_mib(min(data.sizes))} to {_mib(max(data.sizes))}: they cannot be "
            f"shared out evenly, and a node fetches {times:.1f} times its share ({split})"
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
