"""What a folder in S3 is meant to hold: a list of its objects, beside it, so that nobody reads it as data.

    s3://bucket/mnist/               the folder
    s3://bucket/mnist.manifest.json  its manifest

An object stands in it with its name below the folder, its size and its ETag: S3's own mark of what was verified when it
arrived, so that one listing tells whether anything was changed, lost or added.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from provision.errors import ClusterError, NotFoundError, UsageError
from train.s3.client import S3Object
from train.s3.url import S3Url, is_marker
from train.s3.wire import Wire

_SUFFIX = ".manifest.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """An object of a manifest."""

    name: str
    size_bytes: int
    etag: str


def manifest_url(folder: S3Url) -> S3Url:
    """Where a folder's manifest is. Raises UsageError for a whole bucket, which has no beside. Pure."""
    if not folder.key.strip("/"):
        raise UsageError(f"{folder}: a whole bucket can have no manifest", hint="use a folder in it")
    return S3Url(bucket=folder.bucket, key=folder.key.rstrip("/") + _SUFFIX)


def make_items(folder: S3Url, objects: Sequence[S3Object]) -> tuple[Item, ...]:
    """A folder's objects, without markers of folders. Pure."""
    return tuple(
        Item(name=item.url.key.removeprefix(folder.key), size_bytes=item.size_bytes, etag=item.etag.strip('"'))
        for item in objects
        if not is_marker(item.url.key, item.size_bytes)
    )


def render_manifest(items: Sequence[Item]) -> str:
    """The document. Pure."""
    objects = [{"name": item.name, "size_bytes": item.size_bytes, "etag": item.etag} for item in items]
    return json.dumps({"format": _FORMAT, "objects": objects}, indent=1) + "\n"


def parse_manifest(text: bytes, where: S3Url) -> tuple[Item, ...]:
    """A document's objects. Raises ClusterError for what is none."""
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ClusterError(f"{where}: a manifest of format {document['format']}, this program knows {_FORMAT}")
        return tuple(
            Item(name=str(item["name"]), size_bytes=int(item["size_bytes"]), etag=str(item["etag"]))
            for item in document["objects"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{where}: not a manifest", hint="cluster data put --manifest writes one") from error


def write_manifest(wire: Wire, folder: S3Url, objects: Sequence[S3Object]) -> S3Url:
    """Put the folder's manifest beside it. Raises UsageError, AwsError."""
    where = manifest_url(folder)
    body = render_manifest(make_items(folder, objects)).encode()
    wire.call("put_object", Bucket=where.bucket, Key=where.key, Body=body, ContentType="application/json")
    return where


def read_manifest(wire: Wire, folder: S3Url) -> tuple[Item, ...]:
    """Raises UsageError, NotFoundError where there is none, AwsError, ClusterError where it is none."""
    where = manifest_url(folder)
    try:
        body = wire.call("get_object", Bucket=where.bucket, Key=where.key)["Body"]
    except NotFoundError as error:
        hint = f"cluster data verify {folder} DIR, or cluster data put --manifest DIR {folder}"
        raise NotFoundError(f"{error.message}: the folder has no manifest", hint=hint) from error
    with body:
        return parse_manifest(body.read(), where)
