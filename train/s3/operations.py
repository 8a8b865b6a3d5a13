"""Datasets to S3 and from S3: what `cluster data put, get, ls and rm` do.

Each function opens its own connections and is done when it returns. plan.py has the rules for names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from provision.errors import ClusterError, NotFoundError, UsageError
from provision.progress import Event, Report
from train.s3 import transfer
from train.s3.client import S3Client, S3Object, open_s3
from train.s3.find import find_objects
from train.s3.local import find_files
from train.s3.plan import Download, Upload, plan_get, plan_put
from train.s3.transfer import Progress
from train.s3.url import S3Url, has_glob, parse_url

_DELETE_AT_ONCE = 1000  # S3's limit for one DeleteObjects
Result = TypeVar("Result")


# What a listing shows: an object, or a bucket or folder as its URL.
Entry = S3Object | S3Url
# Given the plan before it is carried out, makes what is told of its progress.
Watch = Callable[[Sequence[Upload | Download]], Progress]


def put(
    sources: Sequence[str],
    destination: str,
    *,
    region: str,
    create_bucket: bool = False,
    report: Report,
    watch: Watch,
) -> tuple[Upload, ...]:
    """Copy local files, folders and globs to S3; returns what was copied.

    create_bucket: make the bucket, private, where there is none. Raises UsageError for names that cannot be,
    NotFoundError for a source or bucket that does not exist, AwsError where S3 refuses, and, when all the
    others are copied, ClusterError that names each file that failed.
    """
    target = parse_url(destination)
    plan = plan_put(find_files(sources), target)

    async def run(client: S3Client) -> tuple[Upload, ...]:
        await _ensure_bucket(client, target.bucket, create=create_bucket, report=report)
        await transfer.apply(client, plan, watch(plan))
        return plan

    return _run(run, region)


def get(sources: Sequence[str], destination: str, *, region: str, watch: Watch) -> tuple[Download, ...]:
    """Copy objects, folders and globs from S3 to this machine; returns what was copied.

    Nothing is ever written outside of the destination, whatever an object's key is. Raises as `put` does.
    """
    urls = [parse_url(source) for source in sources]
    folder_exists = Path(destination).is_dir()

    async def run(client: S3Client) -> tuple[Download, ...]:
        found = await find_objects(client, urls)
        plan = plan_get(found, destination, folder_exists=folder_exists)
        await transfer.apply(client, plan, watch(plan))
        return plan

    return _run(run, region)


def ls(url: str | None, *, region: str, recursive: bool = False) -> tuple[Entry, ...]:
    """The account's buckets (no URL), or what stands in a folder, sorted: objects, and folders as URLs.

    recursive: all objects below the folder instead, without folders. A URL without a trailing slash is an
    object or a folder. Raises UsageError, NotFoundError where there is nothing, AwsError.
    """
    where = parse_url(url) if url else None

    async def run(client: S3Client) -> tuple[Entry, ...]:
        if where is None:
            buckets = (await client.call("list_buckets")).get("Buckets", [])
            return tuple(S3Url(bucket=bucket["Name"]) for bucket in buckets)
        return await _list(client, where, recursive=recursive)

    return _run(run, region)


def find_whole_buckets(urls: Sequence[str], *, recursive: bool) -> tuple[str, ...]:
    """The names of the buckets that `rm` would delete as a whole. Raises UsageError, also where not `recursive`."""
    targets = [parse_url(url) for url in urls]
    buckets = tuple(dict.fromkeys(target.bucket for target in targets if not target.key))
    if buckets and not recursive:
        raise UsageError(
            f"s3://{buckets[0]}/ is a whole bucket, nothing was deleted", hint="add --recursive if you mean it"
        )
    return buckets


def rm(urls: Sequence[str], *, region: str, recursive: bool = False) -> int:
    """Delete objects, and with `recursive` folders and buckets with all they hold; returns how many objects.

    Raises UsageError for a folder or bucket without `recursive`, NotFoundError where there is nothing,
    AwsError, and ClusterError that names each object that could not be deleted.
    """
    targets = [parse_url(url) for url in urls]
    buckets = find_whole_buckets(urls, recursive=recursive)

    async def run(client: S3Client) -> int:
        keys = await _keys_to_delete(client, targets, recursive=recursive)
        for bucket, names in keys.items():
            await _delete(client, bucket, names)
        for bucket in buckets:
            await client.call("delete_bucket", Bucket=bucket)
        return sum(len(names) for names in keys.values())

    return _run(run, region)


def _run(work: Callable[[S3Client], Awaitable[Result]], region: str) -> Result:
    async def connected() -> Result:
        async with open_s3(region=region) as client:
            return await work(client)

    return asyncio.run(connected())


async def _ensure_bucket(client: S3Client, bucket: str, *, create: bool, report: Report) -> None:
    if await client.bucket_exists(bucket):
        return
    if not create:
        raise NotFoundError(
            f"bucket {bucket} does not exist", hint="add --create-bucket to make it, private to this account"
        )
    await client.create_bucket(bucket)
    report(Event(kind="done", what="made the bucket, private to this account", where=f"s3://{bucket}"))


async def _list(client: S3Client, where: S3Url, *, recursive: bool) -> tuple[Entry, ...]:
    if where.key and not where.key.endswith("/"):
        # A key sorts before every longer one that begins with it.
        async for item in client.list_objects(where, limit=1):
            if item.url == where:
                return (item,)
        where = S3Url(bucket=where.bucket, key=where.key + "/")
    listing = client.list_objects(where) if recursive else client.list_level(where)
    entries = [entry async for entry in listing]
    if where.key and not entries:
        raise NotFoundError(f"{where}: no such object or folder", hint=f"cluster data ls s3://{where.bucket}/")
    shown = [entry for entry in entries if not isinstance(entry, S3Object) or not entry.url.key.endswith("/")]
    return tuple(sorted(shown, key=lambda entry: entry.url if isinstance(entry, S3Object) else entry))


async def _keys_to_delete(client: S3Client, targets: Sequence[S3Url], *, recursive: bool) -> dict[str, tuple[str, ...]]:
    """The keys by bucket, each once."""
    keys: dict[str, dict[str, None]] = {}
    for target in targets:
        names = keys.setdefault(target.bucket, {})
        if not target.key:
            names.update({item.url.key: None async for item in client.list_objects(target)})
            continue
        for item in await find_objects(client, [target], with_markers=True):
            if not recursive and not item.alone and (not has_glob(target.key) or "/" in item.name):
                raise UsageError(
                    f"{target}: {item.url} is in a folder, nothing was deleted",
                    hint="add --recursive if you mean the folder with all that is in it",
                )
            names[item.url.key] = None
    return {bucket: tuple(names) for bucket, names in keys.items()}


async def _delete(client: S3Client, bucket: str, keys: Sequence[str]) -> None:
    failed: list[str] = []
    for begin in range(0, len(keys), _DELETE_AT_ONCE):
        objects = [{"Key": key} for key in keys[begin : begin + _DELETE_AT_ONCE]]
        response = await client.call("delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        failed += [f"s3://{bucket}/{error['Key']}: {error['Message']}" for error in response.get("Errors", ())]
    if failed:
        raise ClusterError(f"{len(failed)} of {len(keys)} objects were not deleted:\n  " + "\n  ".join(failed))
