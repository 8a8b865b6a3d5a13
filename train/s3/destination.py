"""The destination of a put: the objects that it already has, and the bucket, which is created on request."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from foundation.errors import AwsError, NotFoundError
from foundation.progress import Event, Report
from train.s3.connection import Connection
from train.s3.errors import OwnBucketError, S3AccessDeniedError
from train.s3.transfer_plan import Upload
from train.s3.url import S3Object, S3Url

UNFINISHED_DAYS = 7
"""An upload may run for this long. S3 bills the parts of unfinished uploads as it bills objects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A destination's state in S3. bucket: "closed" if the caller may not list it, such as another account's."""

    bucket: Literal["there", "missing", "closed"]
    objects: Sequence[S3Object] = ()


def describe_destination(
    connection: Connection, planned: Sequence[Upload], folder: S3Url, kept: Collection[S3Url], *, whole: bool
) -> Target:
    """Finds the objects at the destinations of the uploads (`kept`). whole: also everything else in the folder.

    Raises AwsError, but S3AccessDeniedError only with `whole`.
    """
    try:
        if len(planned) == 1 and not whole:
            found = connection.find_object(planned[0].destination)
            # S3 gives the same answer for a missing object and a missing bucket: a listing tells them apart.
            return Target(bucket="there", objects=[found] if found else connection.list_objects(folder, limit=1))
        return Target(
            bucket="there", objects=connection.list_objects(folder, only=None if whole else kept, exact=whole)
        )
    except S3AccessDeniedError:
        if whole:
            raise
        return Target(bucket="closed")
    except NotFoundError:
        return Target(bucket="missing")


def prepare_bucket(connection: Connection, found: Target, bucket: str, report: Report) -> None:
    """Creates the bucket unless it exists. Raises AwsError if this caller may not create buckets.

    S3 makes every new bucket private, and encrypts its objects, since April 2023.
    """
    where = f"s3://{bucket}"
    if found.bucket == "closed":
        report(Event(kind="warn", what="the bucket exists and you may not list it: is it yours?", where=where))
    elif found.bucket == "missing":
        _create(connection, bucket)
        report(Event(kind="done", what="created the bucket, private to this account", where=where))
        _expire_unfinished_uploads(connection, bucket, report)


def _create(connection: Connection, bucket: str) -> None:
    request: dict[str, Any] = {"Bucket": bucket}
    if connection.region != "us-east-1":  # S3 rejects us-east-1 as a location
        request["CreateBucketConfiguration"] = {"LocationConstraint": connection.region}
    # It was missing a moment ago: S3's response was lost and the call retried, or another run was faster.
    with suppress(OwnBucketError):
        connection.call("create_bucket", **request)


def _expire_unfinished_uploads(connection: Connection, bucket: str, report: Report) -> None:
    """Has S3 delete the parts of uploads that were not completed within a week."""
    rule = {
        "ID": "abort-unfinished-uploads",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UNFINISHED_DAYS},
    }
    try:
        connection.call("put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    except AwsError as error:  # the bucket is usable without it
        what = f"S3 will not delete interrupted uploads automatically: {error.message}"
        report(Event(kind="warn", what=what, where=f"s3://{bucket}"))
