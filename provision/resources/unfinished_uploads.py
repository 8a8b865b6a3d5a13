"""Incomplete multipart uploads to S3: they cost the same as objects, and object listings do not show them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from foundation.errors import AwsError
from foundation.thread_pool import map_in_threads
from provision.aws.clients import aws_errors, error_code
from provision.aws.multipart_uploads import NOT_IN_XML, list_uploads
from provision.model import ClusterState, Upload, count, profile_name
from provision.plan import Context, Step
from provision.resources.resource import Look, Resource, ResourceKind, Scope, Unseen, delete_each

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KIND = "upload"
IDLE_S = 15 * 60.0
"""An upload that has received no part for this long is dead: a part takes seconds to minutes."""

_AT_ONCE = 8
_SCHEME = "s3://"
_ASSUMED_ROLE = re.compile(r"arn:[\w-]+:sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/(?P<session>.+)")
_MADE_UP_SESSION = re.compile(r"(botocore-session|AWSCLI-Session|aws-sdk-[a-z]+|aws-go-sdk)-?\d*")
"""Session names that AWS's tools generate, a new one for each session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder in S3; `prefix` ends with a slash, or is empty for the whole bucket."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.prefix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploads:
    """The incomplete uploads of the cluster's nodes or its owner. unseen: folders that could not be listed."""

    found: tuple[Upload, ...] = ()
    unseen: tuple[Unseen, ...] = ()


def is_dead(upload: Upload) -> bool:
    """Returns whether the upload has been abandoned: it is idle, or its node ends with the cluster."""
    return upload.by_node or upload.idle_s >= IDLE_S


def find_uploads(
    s3: S3Client, *, urls: Sequence[str], owner: str, now: datetime, node_role: str | None = None
) -> Uploads:
    """Returns the incomplete uploads to folders of S3 that `owner` or a node started, in the order of their keys.

    urls: such as s3://bucket/folder/; a missing bucket counts as empty. owner: an ARN. node_role: the name of the
    cluster's role, in the owner's account. A folder that cannot be listed is `unseen`, not an error: `down` needs no
    permission to read data. Makes one call per folder and 1000 uploads, and one per upload older than IDLE_S.
    """
    search = _Search(s3=s3, owner=owner, node_role=node_role, now=now)
    found: dict[tuple[str, str, str], Upload] = {}
    unseen: list[Unseen] = []
    for folder in sorted({parse_folder(url) for url in urls}, key=str):
        try:
            with aws_errors(f"looking for incomplete uploads to {folder}"):
                found |= {(u.bucket, u.key, u.upload_id): u for u in search.look_in(folder)}
        except AwsError as error:
            unseen.append(Unseen(kind=f"uploads to {folder}", why=error.message))
    return Uploads(found=tuple(found[place] for place in sorted(found)), unseen=tuple(unseen))


def _find(scope: Scope) -> Uploads:
    """Returns the incomplete uploads of the caller and of the nodes."""
    if not scope.urls:
        return Uploads()
    try:
        with aws_errors("looking up the caller's identity"):
            owner = scope.clients.sts.get_caller_identity()["Arn"]
    except AwsError as error:
        folders = (parse_folder(url) for url in scope.urls)
        return Uploads(unseen=tuple(Unseen(kind=f"uploads to {folder}", why=error.message) for folder in folders))
    role = profile_name(scope.name, region=scope.clients.region)
    return find_uploads(scope.clients.s3, urls=scope.urls, owner=owner, now=datetime.now(UTC), node_role=role)


def _look(scope: Scope) -> Look:
    """Looks for dead uploads, with the commands that abort them."""
    uploads = _find(scope)
    return Look(
        looked_for=("uploads",) if len({parse_folder(url) for url in scope.urls}) > len(uploads.unseen) else (),
        left=tuple(upload_resource(upload) for upload in uploads.found if is_dead(upload)),
        unseen=uploads.unseen,
        in_progress=tuple(upload for upload in uploads.found if not is_dead(upload)),
    )


def upload_resource(upload: Upload) -> Resource:
    """Returns an upload with the command that aborts it."""
    words = ("--bucket", upload.bucket, "--key", upload.key, "--upload-id", upload.upload_id)
    command = shlex.join(("aws", "s3api", "abort-multipart-upload", *words))
    return Resource(kind=KIND, resource_id=upload.url, deletion=command)


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    """Plans to abort the dead uploads; the others continue."""
    dead = tuple(upload for upload in (UPLOADS.found_in(state) or Uploads()).found if is_dead(upload))
    return (AbortUploads(uploads=dead),) if dead else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortUploads(Step):
    """Abort interrupted uploads to S3, whose parts cost money."""

    uploads: tuple[Upload, ...]

    def describe(self) -> str:
        return f"abort {count(len(self.uploads), 'interrupted upload')} to S3"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((KIND, [upload.url for upload in self.uploads]),)

    def apply(self, context: Context) -> bool:
        """Aborts the uploads, one call each: S3 has no batch call. False if none existed. Raises ClientError."""
        s3 = context.clients.s3

        def abort(upload: Upload) -> None:
            s3.abort_multipart_upload(Bucket=upload.bucket, Key=upload.key, UploadId=upload.upload_id)

        return delete_each(abort, self.uploads, gone={"NoSuchUpload", "NoSuchBucket"})


def parse_folder(url: str) -> Folder:
    """Returns the folder of a valid s3:// URL."""
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    return Folder(bucket=bucket, prefix=f"{key.rstrip('/')}/" if key.strip("/") else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """The arguments of find_uploads."""

    s3: S3Client
    owner: str
    node_role: str | None
    now: datetime

    def look_in(self, folder: Folder) -> list[Upload]:
        """Returns the uploads of the owner and the nodes to a folder; empty without the bucket. Raises ClientError."""
        uploads = list_uploads(self.s3.list_multipart_uploads, bucket=folder.bucket, prefix=folder.prefix)
        try:
            ours = [upload for upload in uploads if self._is_ours(upload)]
        except ClientError as error:
            if error_code(error) != "NoSuchBucket":
                raise
            return []
        described = map_in_threads(lambda one, _check: self._describe(folder.bucket, one), ours, threads=_AT_ONCE)
        return [upload for upload in described if upload is not None]

    def _describe(self, bucket: str, upload: dict[str, Any]) -> Upload | None:
        """Returns the upload with the time since its newest part; None if it has been completed or aborted.

        The answer of ListParts contains the key: if XML cannot represent it, the upload's start counts.
        """
        key, upload_id = upload["Key"], upload["UploadId"]
        newest = upload["Initiated"]
        if self._idle_s(newest) >= IDLE_S and not NOT_IN_XML.search(key):
            pages = self.s3.get_paginator("list_parts").paginate(Bucket=bucket, Key=key, UploadId=upload_id)
            try:
                newest = max([newest, *(part["LastModified"] for page in pages for part in page.get("Parts", []))])
            except ClientError as error:
                if error_code(error) != "NoSuchUpload":
                    raise
                return None
        return Upload(
            bucket=bucket,
            key=key,
            upload_id=upload_id,
            idle_s=self._idle_s(newest),
            by_node=self._is_node(_initiator(upload)),
        )

    def _idle_s(self, newest: datetime) -> float:
        return max((self.now - newest).total_seconds(), 0.0)

    def _is_ours(self, upload: dict[str, Any]) -> bool:
        """Returns whether the owner or a node started the upload; True if S3 does not report who did.

        S3 reports an ARN. For the root user, it reports the account's canonical id, which is also the upload's owner
        (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Initiator.html).
        """
        initiator = _initiator(upload)
        if not initiator or initiator == self.owner or self._is_node(initiator):
            return True
        if not initiator.startswith("arn:"):
            return self.owner.endswith(":root") and initiator == upload.get("Owner", {}).get("ID")
        theirs, ours = _ASSUMED_ROLE.fullmatch(initiator), _ASSUMED_ROLE.fullmatch(self.owner)
        if theirs is None or ours is None or theirs.group("account", "role") != ours.group("account", "role"):
            return False
        return all(_MADE_UP_SESSION.fullmatch(match["session"]) for match in (theirs, ours))

    def _is_node(self, initiator: str) -> bool:
        match = _ASSUMED_ROLE.fullmatch(initiator)
        return match is not None and match.group("account", "role") == (self.owner.split(":")[4], self.node_role)


def _initiator(upload: dict[str, Any]) -> str:
    return str(upload.get("Initiator", {}).get("ID", ""))


UPLOADS: ResourceKind[Uploads] = ResourceKind(kind=KIND, look=_look, find=_find, plan_down=_plan_down)
