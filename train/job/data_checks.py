"""Checks a job's data before the job starts: finds problems, and shards that cost time. Pure."""

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from provision.model import count as count_noun
from train.job.survey import Data, Refusal

# This project's scripts that read the .rec files in train/.
RECORD_SCRIPTS = ("train_cifar10.py", "train_imagenet.py")
ARCHIVED = "InvalidObjectState"
MIB = 1 << 20
PER_NODE = 16
"""Shards per node."""
LEAST_PER_NODE = 4
LEAST_BYTES = MIB
MOST_BYTES = 1 << 30


class Problem(NamedTuple):
    """An error or warning about a job, and what to do. certain: no program can read [data] url like this."""

    message: str
    hint: str = ""
    certain: bool = True


def find_problems(
    data: Data, url: str, *, region: str | None, script: str | None, nodes_credentials: bool
) -> Iterator[Problem]:
    """The problems of a job's data at [data] url.

    region: the nodes'. script: this project's script, if the job runs one. nodes_credentials: the job uses the nodes'
    credentials.
    """
    if url.startswith("/"):
        yield from _find_folder_problems(data, url, script=script)
        return
    if not data.bucket_exists:
        yield Problem(f'data.url = "{url}": there is no such bucket', f"cluster data put --create-bucket FOLDER {url}")
        return
    if None not in (data.region, region) and data.region != region:
        yield Problem(
            f'data.url = "{url}": the bucket is in {data.region}, but the nodes are in {region} and read S3 there',
            f'set [provision] region = "{data.region}" for a new cluster, or copy the data to a bucket in {region}: '
            "cluster data get, then cluster data put --create-bucket",
            certain=data.at_aws,
        )
    if data.refused is not None and (not nodes_credentials or data.refused.code == ARCHIVED):
        yield _refused(data.refused, url)
    yield from _find_content_problems(data, url, script=script, put=f"cluster data put FOLDER {url}")


def _find_folder_problems(data: Data, folder: str, *, script: str | None) -> Iterator[Problem]:
    """The problems of a folder on a volume."""
    put = f"cluster cp LOCAL_FOLDER node-0:{folder}"
    if not data.bucket_exists:
        yield Problem(f'data.url = "{folder}": there is no such folder', put)
        return
    if data.refused is not None:
        where, why = data.refused.where, data.refused.words
        yield Problem(f'data.url = "{folder}": {where} cannot be read: {why}', f"cluster exec -- ls -la {folder}")
    yield from _find_content_problems(data, folder, script=script, put=put)


def _find_content_problems(data: Data, url: str, *, script: str | None, put: str) -> Iterator[Problem]:
    """The problems of the files. put: the command that copies files there."""
    if data.complete and not data.objects:
        yield Problem(f'data.url = "{url}": there is nothing to read', put)
    elif data.complete and not data.in_train and script in RECORD_SCRIPTS:
        yield Problem(f'data.url = "{url}": {script} reads .rec files in train/, and finds none', put)
    if data.not_records is not None:
        yield Problem(
            f"{data.not_records} is not a RecordIO file: its first bytes are wrong",
            "upload it again; cluster data pack makes RecordIO files",
            certain=script in RECORD_SCRIPTS,
        )
    if data.cut_short is not None:
        yield Problem(
            f"{url.rstrip('/')}/{data.cut_short} is incomplete: the size of a .rec file is a multiple of four bytes",
            "cluster data info shows where it ends; upload it again",
            certain=script in RECORD_SCRIPTS,
        )
    if data.sizes and data.others and (script is None or script in RECORD_SCRIPTS):
        yield _others(data, url, script=script)


def _refused(refused: Refusal, url: str) -> Problem:
    if refused.code == ARCHIVED:
        return Problem(
            f"{refused.where} is archived (Glacier) and cannot be read: {refused.words}",
            "aws s3api restore-object, or upload it again",
        )
    return Problem(
        f'data.url = "{url}": the job gets your credentials, and with them {refused.where} cannot be {refused.what}: '
        f"{refused.code}: {refused.words}",
        "cluster iam-policy prints the permissions that you need; or let the nodes use [provision] instance_profile",
    )


def _others(data: Data, url: str, *, script: str | None) -> Problem:
    first, more = data.others[0], len(data.others) - 1
    named = f"{first} and {more} more" if more else first
    # Records may also be in a file such as "part-0", but not in one with another extension.
    known = any("." in name for name in data.others)
    return Problem(
        f"{url.rstrip('/')}/{data.folder} contains {named} next to its .rec files: MXNet reads every file of a folder "
        "as records",
        "move the other files elsewhere, or name the .rec files: --data-train 's3://.../a.rec;s3://.../b.rec'",
        certain=script in RECORD_SCRIPTS and known,
    )


def find_costs(data: Data, url: str, *, workers: Mapping[str, int], script: str | None) -> Iterator[str]:
    """Warnings about the number of shards. workers: how many each node has.

    MXNet divides the bytes of all shards, one after another, into equal parts, one for each worker.
    """
    per_node = [number for number in workers.values() if number]
    count, nodes = sum(per_node), len(per_node)
    shards = len(data.sizes) or data.in_train or data.records
    if not data.complete or not shards or (script is not None and script not in RECORD_SCRIPTS):
        return
    if shards < count:
        split = render_split(url, data.folder, choose_count(sum(data.sizes), workers=count, nodes=nodes))
        where = f"{url.rstrip('/')}/{data.folder}"
        files = count_noun(shards, ".rec file")
        yield f"{where} has {files} for {count} workers: several read parts of the same file ({split})"


# -- the best number of shards -----------------------------------------------------------------------------------------


def choose_count(total_bytes: int, *, workers: int, nodes: int) -> int:
    """The best number of shards: as many for each worker, none too small for a request of its own, none too large."""
    wanted = max(min(PER_NODE * nodes, total_bytes // LEAST_BYTES), total_bytes // MOST_BYTES, LEAST_PER_NODE * nodes)
    return -(-wanted // workers) * workers


def render_split(url: str, folder: str, count: int) -> str:
    """The command that splits the .rec files of a folder below [data] url into `count`, and the steps after it."""
    base = url.rstrip("/")
    is_bucket = "/" not in base.removeprefix("s3://")
    new = f"{base}/{count}-shards" if is_bucket else f"{base}-{count}-shards"
    command = shlex.join(["cluster", "data", "split", f"{base}/{folder}", f"{new}/{folder}", "--shards", str(count)])
    others = f", copy the files outside {folder}" if folder else ""
    return f'{command}{others}, and set [data] url = "{new}/"'
