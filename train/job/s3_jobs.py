"""Jobs as S3 has them, where [data] results is set: what node/publish.py has copied there outlives the cluster."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from botocore.exceptions import BotoCoreError

from foundation.errors import AwsError, NotFoundError
from train.follow.records import JobRecord, read_record
from train.job.protocol import MAX_RECORD_BYTES, OUR_JOB_ID
from train.s3.client import S3Client, explain, open_s3
from train.s3.url import S3Url, parse_url

MAX_RECORDS = 50
PIECE_BYTES = 1 << 20


def read_s3_records(results: str, *, region: str) -> tuple[JobRecord, ...]:
    """The newest jobs below [data] results, newest first. Folders of something else are left out.

    Raises ClusterError's kinds; a bucket that does not exist has no jobs.
    """
    try:
        return asyncio.run(_read_records(parse_url(results), region=region))
    except NotFoundError:
        return ()


def fetch_s3_log(results: str, job: str, *, region: str, into: BinaryIO) -> None:
    """Write a job's events into a file. Raises NotFoundError, and ClusterError's other kinds."""
    asyncio.run(_fetch_log(_inside(parse_url(results), job, "events"), region=region, into=into))


async def _read_records(results: S3Url, *, region: str) -> tuple[JobRecord, ...]:
    async with open_s3(region=region) as client:
        folders = [item async for item in client.list_level(results) if isinstance(item, S3Url)]
        # A job's id begins with the moment at which it was made.
        names = sorted((folder.key.removesuffix("/").rpartition("/")[2] for folder in folders), reverse=True)
        found = await asyncio.gather(*(_read_record(client, results, name) for name in names[:MAX_RECORDS]))
    return tuple(record for record in found if record is not None)


async def _read_record(client: S3Client, results: S3Url, job: str) -> JobRecord | None:
    body = bytearray()
    try:
        async for piece in _read(client, _inside(results, job, "record.json")):
            body += piece
            if len(body) > MAX_RECORD_BYTES:
                break
    except NotFoundError:  # the folder of something else
        return None
    record = read_record(bytes(body), source="s3", job=job)
    return None if record.is_damaged and OUR_JOB_ID.fullmatch(job) is None else record


async def _fetch_log(url: S3Url, *, region: str, into: BinaryIO) -> None:
    async with open_s3(region=region) as client:
        async for piece in _read(client, url):
            into.write(piece)


async def _read(client: S3Client, url: S3Url) -> AsyncIterator[bytes]:
    response = await client.call("get_object", Bucket=url.bucket, Key=url.key)
    expected, got = int(response["ContentLength"]), 0
    try:
        async with response["Body"] as stream:
            while piece := await stream.read(PIECE_BYTES):
                got += len(piece)
                yield piece
    except (BotoCoreError, OSError) as error:
        raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
    if got < expected:
        raise AwsError(f"{url}: only {got} of {expected} bytes came", hint="the same command again")


def _inside(results: S3Url, job: str, name: str) -> S3Url:
    return S3Url(bucket=results.bucket, key=f"{results.key}{job}/{name}")
