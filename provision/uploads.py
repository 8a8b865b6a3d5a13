"""Multipart uploads to S3 that were begun and not completed: they cost as objects do, and no listing shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import aws_errors, error_code
from provision.context import Context
from provision.errors import AwsError
from provision.leftovers import Unseen
from provision.model import Upload
from provision.steps import AbortUploads

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import MultipartUploadTypeDef

IDLE_S = 15 * 60.0
"""An upload of which no part has arrived for so long is dead: a part takes seconds to minutes."""

_AT_ONCE = 8
_SCHEME = "s3://"
_ASSUMED_ROLE = re.compile(r"arn:[\w-]+:sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/(?P<session>.+)")
_MADE_UP_SESSION = re.compile(r"(botocore-session|AWSCLI-Session|aws-sdk-[a-z]+|aws-go-sdk)-?\d*")
"""Names that AWS's own tools give to a session, another one each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder in S3; `prefix` is empty, for the whole bucket, or ends with a slash."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.prefix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploads:
    """Incomplete uploads that are the cluster's or its owner's. unseen: folders that could not be listed."""

    found: tuple[Upload, ...] = ()
    unseen: tuple[Unseen, ...] = ()


def is_dead(upload: Upload) -> bool:
    """Whether nobody is at it any more: it is idle, or the node that began it ends with the cluster."""
    return upload.by_node or upload.idle_s >= IDLE_S


def find_uploads(
    s3: S3Client, *, urls: Sequence[str], owner: str, now: datetime, node_role: str | None = None
) -> Uploads:
    """The incomplete uploads in folders of S3 that `owner`, or a node by its role, has begun; in their keys' order.

    urls: such as s3://bucket/folder/; a bucket that does not exist holds nothing. owner: an ARN. node_role: the name
    of the cluster's role, in the owner's account. A folder that cannot be listed is `unseen`, and no error: whoever
    ends a cluster need not be allowed to read its data. One call for each folder and 1000 uploads, and one for each
    upload that is not young.
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


def abort_uploads(step: AbortUploads, context: Context) -> bool:
    """Aborts them, one call for each: S3 has none for many. False: all are gone. Raises ClientError."""
    changed = False
    for upload in step.uploads:
        try:
            context.clients.s3.abort_multipart_upload(Bucket=upload.bucket, Key=upload.key, UploadId=upload.upload_id)
        except ClientError as error:
            if error_code(error) not in {"NoSuchUpload", "NoSuchBucket"}:
                raise
        else:
            changed = True
    return changed


def parse_folder(url: str) -> Folder:
    """The folder of an s3:// URL that the configuration has checked."""
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    return Folder(bucket=bucket, prefix=f"{key.rstrip('/')}/" if key.strip("/") else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """What find_uploads was asked."""

    s3: S3Client
    owner: str
    node_role: str | None
    now: datetime

    def look_in(self, folder: Folder) -> list[Upload]:
        """Raises ClientError."""
        pages = self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=folder.bucket, Prefix=folder.prefix)
        try:
            ours = [upload for page in pages for upload in page.get("Uploads", []) if self._is_ours(upload)]
        except ClientError as error:
            if error_code(error) != "NoSuchBucket":
                raise
            return []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            described = pool.map(lambda upload: self._describe(folder.bucket, upload), ours)
            return [upload for upload in described if upload is not None]

    def _describe(self, bucket: str, upload: MultipartUploadTypeDef) -> Upload | None:
        """An upload with the time since its newest part; None when it was completed or aborted meanwhile."""
        key, upload_id = upload["Key"], upload["UploadId"]
        newest = upload["Initiated"]
        if self._idle_s(newest) >= IDLE_S:
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

    def _is_ours(self, upload: MultipartUploadTypeDef) -> bool:
        """Whether the owner or a node began it; so is one of which S3 does not say who began it.

        S3 gives an ARN, and for an account's root user the account's canonical id, which is also that of the
        upload's owner (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Initiator.html).
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


def _initiator(upload: MultipartUploadTypeDef) -> str:
    return upload.get("Initiator", {}).get("ID", "")
