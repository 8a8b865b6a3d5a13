"""Where a put goes: what is there already, and the bucket, which is made and made private where that is wanted."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from provision.errors import AwsError, ClusterError, NotFoundError
from provision.progress import Event, Report
from train.s3.client import OwnBucketError, S3AccessDeniedError, S3Client, S3Object, open_s3
from train.s3.listing import Listing
from train.s3.plan import Upload
from train.s3.url import S3Url


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What S3 tells of a destination. bucket: "closed" to who may not look into it, perhaps because it is another's."""

    bucket: Literal["there", "missing", "closed"]
    objects: Sequence[S3Object] = ()


def look(listing: Listing, planned: Sequence[Upload], folder: S3Url, kept: Collection[S3Url], *, whole: bool) -> Found:
    """What is where the uploads go. kept: their destinations; whole: all else that is in the folder, too.

    Raises AwsError, S3AccessDeniedError only where the whole is asked for.
    """
    try:
        if len(planned) == 1 and not whole:
            found = listing.find_object(planned[0].destination)
            # Also of a bucket that does not exist S3 says that it has no such object.
            return Found(bucket="there", objects=[found] if found else listing.list_some(folder))
        return Found(bucket="there", objects=listing.list_objects(folder, only=None if whole else kept))
    except S3AccessDeniedError:
        if whole:
            raise
        return Found(bucket="closed")
    except NotFoundError:
        return Found(bucket="missing")


def prepare_bucket(listing: Listing, found: Found, bucket: str, *, region: str, report: Report) -> None:
    """Make the bucket, private, unless it is there.

    One that is there and empty is made private where nothing is set: the run that made it may have been stopped
    before it came to that. Raises AwsError where the name is somebody else's, or this caller may not make buckets.
    """
    import asyncio  # noqa: PLC0415 - slow to import, and seldom needed

    async def create() -> bool:
        async with open_s3(region=region) as client:
            return await _create(client, bucket, closed=found.bucket == "closed")

    async def protect() -> bool:
        async with open_s3(region=region) as client:
            return await client.protect_bucket(bucket, where_unset=True)

    where = f"s3://{bucket}"
    if found.bucket != "there":
        if asyncio.run(create()):
            report(Event(kind="done", what="made the bucket, private to this account", where=where))
        return
    if found.objects or listing.list_some(S3Url(bucket=bucket)):
        return
    try:
        if asyncio.run(protect()):
            report(Event(kind="done", what="made the bucket, which is empty, private to this account", where=where))
    except ClusterError as error:
        # It can be written to all the same: perhaps it is another account's, or its keeper has seen to it.
        report(Event(kind="warn", what=f"whether it is private is not known: {error.message}", where=where))


async def _create(client: S3Client, bucket: str, *, closed: bool) -> bool:
    """Whether it was made; False where it is this account's, or this caller can do no more than try to write."""
    # Where one's own bucket is made again us-east-1 says yes, and what it is set to would be replaced.
    if closed and await _is_ours(client, bucket):
        return False
    try:
        await client.create_bucket(bucket)
    except OwnBucketError:
        if closed:
            return False
        # It was not there a moment ago: S3's answer was lost and the call repeated, or another run was faster.
    except S3AccessDeniedError:
        if closed:
            return False
        raise
    await client.protect_bucket(bucket)
    return True


async def _is_ours(client: S3Client, bucket: str) -> bool:
    try:
        listed = await client.call("list_buckets")
    except AwsError:
        return False
    return any(item["Name"] == bucket for item in listed.get("Buckets", ()))
