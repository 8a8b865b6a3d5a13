"""Where a put goes: what is there already, and the bucket, which is made and made private where that is wanted."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foundation.errors import AwsError, ClusterError, NotFoundError
from foundation.progress import Event, Report
from train.s3.client import OwnBucketError, S3AccessDeniedError, S3Object
from train.s3.connection import Connection
from train.s3.plan import Upload
from train.s3.sources import Listing
from train.s3.url import S3Url

UNFINISHED_DAYS = 7
"""S3 bills for the parts of an unfinished upload as for objects; so long, one may still be at work."""
# What makes a bucket private, by what its calls are named for.
_PROTECTION: dict[str, dict[str, Any]] = {
    "public_access_block": {
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "IgnorePublicAcls": True,
            "BlockPublicPolicy": True,
            "RestrictPublicBuckets": True,
        }
    },
    "bucket_encryption": {
        "ServerSideEncryptionConfiguration": {
            "Rules": [
                {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False},
            ]
        }
    },
}


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


def prepare_bucket(connection: Connection, listing: Listing, found: Found, bucket: str, report: Report) -> None:
    """Make the bucket, private, unless it is there.

    One that is there and empty is made private where nothing is set: the run that made it may have been stopped
    before it came to that. Raises AwsError where the name is somebody else's, or this caller may not make buckets.
    """
    where = f"s3://{bucket}"
    if found.bucket != "there":
        if _create(connection, bucket, closed=found.bucket == "closed"):
            report(Event(kind="done", what="made the bucket, private to this account", where=where))
            _expire_unfinished_uploads(connection, bucket, report)
        return
    if found.objects or listing.list_some(S3Url(bucket=bucket)):
        return
    try:
        if _protect(connection, bucket, where_unset=True):
            report(Event(kind="done", what="made the bucket, which is empty, private to this account", where=where))
    except ClusterError as error:
        # It can be written to all the same: perhaps it is another account's, or its keeper has seen to it.
        report(Event(kind="warn", what=f"whether it is private is not known: {error.message}", where=where))


def _create(connection: Connection, bucket: str, *, closed: bool) -> bool:
    """Whether it was made; False where it is this account's, or this caller can do no more than try to write."""
    # Where one's own bucket is made again us-east-1 says yes, and what it is set to would be replaced.
    if closed and _is_ours(connection, bucket):
        return False
    request: dict[str, Any] = {"Bucket": bucket}
    if connection.region != "us-east-1":  # which S3 wants unnamed
        request["CreateBucketConfiguration"] = {"LocationConstraint": connection.region}
    try:
        connection.call("create_bucket", **request)
    except OwnBucketError:
        if closed:
            return False
        # It was not there a moment ago: S3's answer was lost and the call repeated, or another run was faster.
    except S3AccessDeniedError:
        if closed:
            return False
        raise
    _protect(connection, bucket)
    return True


def _is_ours(connection: Connection, bucket: str) -> bool:
    try:
        buckets = connection.call("list_buckets").get("Buckets", ())
    except AwsError:  # it may not be allowed to ask either
        return False
    return any(item["Name"] == bucket for item in buckets)


def _protect(connection: Connection, bucket: str, *, where_unset: bool = False) -> bool:
    """Let nobody outside of the account read a bucket, whatever is done to it later, and S3 encrypt what is in it.

    where_unset: what somebody has set is left as it is. Returns whether anything was set. Raises AwsError.
    """
    done = False
    for name, settings in _PROTECTION.items():
        if where_unset and _is_set(connection, bucket, name):
            continue
        connection.call(f"put_{name}", Bucket=bucket, **settings)
        done = True
    return done


def _is_set(connection: Connection, bucket: str, name: str) -> bool:
    try:
        connection.call(f"get_{name}", Bucket=bucket)
    except NotFoundError:
        return False
    return True


def _expire_unfinished_uploads(connection: Connection, bucket: str, report: Report) -> None:
    """Let S3 delete the parts of uploads that nobody has completed for a week."""
    rule = {
        "ID": "abort-unfinished-uploads",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UNFINISHED_DAYS},
    }
    try:
        connection.call("put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    except AwsError as error:  # the bucket is good without it
        what = f"interrupted uploads will not be deleted by themselves: {error.message}"
        report(Event(kind="warn", what=what, where=f"s3://{bucket}"))
