"""Compares a folder in S3 with a local folder, or with its manifest.

A manifest lists the folder's objects. It is stored next to the folder, not in it, so that no program reads it as data:

    s3://bucket/mnist/               the folder
    s3://bucket/mnist.manifest.json  its manifest

It records each object's name below the folder, its size and its ETag, which S3 calculated from the verified upload. So
one listing shows whether anything was changed, lost or added.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from foundation.decode import decode
from foundation.errors import ClusterError, NotFoundError, UsageError, list_lines
from foundation.thread_pool import Check, map_in_threads
from train.s3.connection import Connection
from train.s3.content import COMPARED_AT_ONCE, is_same
from train.s3.plan import FoundFile, FoundObject
from train.s3.sources import find_files, find_objects
from train.s3.url import S3Object, S3Url, compile_excludes, is_marker, parse_url

_SUFFIX = ".manifest.json"
_FORMAT = 1
_BLOCK_BYTES = 2**20
Kind = Literal["missing", "surplus", "size", "content"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """kind: `missing` in S3; `surplus`, only in S3; `size` differs; the size is the same and `content` differs."""

    name: str
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """compared: the number of distinct names on both sides."""

    compared: int
    differences: tuple[Difference, ...]


def verify(url: str, local: str | None, *, region: str, exclude: Sequence[str] = ()) -> Verdict:
    """Compares an object or folder in S3 with a local file or folder or, if `local` is None, with the manifest.

    Reads an object only if S3 keeps no digest of it that this machine can calculate. Raises UsageError, NotFoundError
    if one side does not exist at all, ClusterError for a local file that cannot be read, AwsError, OSError.
    """
    where = parse_url(url, exact=local is not None)
    connection = Connection(region=region)
    is_excluded = compile_excludes(exclude)
    if local is None:
        folder = S3Url(bucket=where.bucket, key=where.key.rstrip("/") + "/")
        wanted = read_manifest(connection, folder)
        there = make_items(folder, connection.list_objects(folder))
        return _compare(
            {item.name: item.size_bytes for item in wanted if not is_excluded(item.name)},
            {item.name: item.size_bytes for item in there if not is_excluded(item.name)},
            partial(_same_etag, {i.name: i.etag for i in wanted}, {i.name: i.etag for i in there}),
        )
    files = {file.name: file for file in find_files([local]) if not is_excluded(file.name)}
    unreadable = [f"{file.path}: {file.problem}" for file in files.values() if file.problem]
    if unreadable:
        what = f"files that cannot be compared:{list_lines(unreadable)}"
        raise ClusterError(what, hint="--exclude PATTERN skips them")
    objects = {item.name: item for item in _find(connection, where) if not is_excluded(item.name)}
    if len(files) == len(objects) == 1 and next(iter(files.values())).alone and next(iter(objects.values())).alone:
        # One file and one object, each named by the user, may have different names.
        files = dict(zip(objects, files.values(), strict=True))
    return _compare(
        {name: file.size_bytes for name, file in files.items()},
        {name: item.size_bytes for name, item in objects.items()},
        partial(_same_content, connection, files, objects),
    )


def _find(connection: Connection, where: S3Url) -> Iterable[FoundObject]:
    try:
        return find_objects(connection, [where])
    except NotFoundError:
        connection.list_objects(S3Url(bucket=where.bucket), limit=1)  # raises if the bucket does not exist either
        return ()


def _compare(wanted: Mapping[str, int], there: Mapping[str, int], is_equal: Callable[[str, Check], bool]) -> Verdict:
    names = sorted({*wanted, *there})

    def compare(name: str, go_on: Check) -> Difference | None:
        kind: Kind | None = None
        if name not in there:
            kind = "missing"
        elif name not in wanted:
            kind = "surplus"
        elif wanted[name] != there[name]:
            kind = "size"
        elif not is_equal(name, go_on):
            kind = "content"
        return Difference(name=name, kind=kind) if kind else None

    found = map_in_threads(compare, names, threads=COMPARED_AT_ONCE)
    return Verdict(compared=len(names), differences=tuple(each for each in found if each is not None))


def _same_etag(wanted: Mapping[str, str], there: Mapping[str, str], name: str, _go_on: Check) -> bool:
    return wanted[name] == there[name]


def _same_content(
    connection: Connection, files: Mapping[str, FoundFile], objects: Mapping[str, FoundObject], name: str, go_on: Check
) -> bool:
    item, path = objects[name], files[name].path
    same = is_same(connection, path, item, go_on)
    # S3 keeps no digest that this machine can calculate: compare the bytes.
    return _same_bytes(connection, item, path, go_on) if same is None else same


def _same_bytes(connection: Connection, item: FoundObject, path: Path, go_on: Check) -> bool:
    body = connection.call("get_object", Bucket=item.url.bucket, Key=item.url.key, IfMatch=item.etag)["Body"]
    with body, path.open("rb") as file:
        while True:
            go_on()
            ours, theirs = file.read(_BLOCK_BYTES), body.read(_BLOCK_BYTES)
            if ours != theirs:
                return False
            if not ours:
                return True


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a manifest."""

    name: str
    size_bytes: int
    etag: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of a manifest."""

    format: int
    objects: tuple[Item, ...] = ()


def manifest_url(folder: S3Url) -> S3Url:
    """The URL of a folder's manifest. Raises UsageError for a whole bucket, which has no place next to it. Pure."""
    if not folder.key.strip("/"):
        raise UsageError(f"{folder}: a whole bucket can have no manifest", hint="use a folder in it")
    return S3Url(bucket=folder.bucket, key=folder.key.rstrip("/") + _SUFFIX)


def make_items(folder: S3Url, objects: Sequence[S3Object]) -> tuple[Item, ...]:
    """A folder's objects, without folder markers. Pure."""
    return tuple(
        Item(name=item.url.key.removeprefix(folder.key), size_bytes=item.size_bytes, etag=item.etag.strip('"'))
        for item in objects
        if not is_marker(item.url.key, item.size_bytes)
    )


def parse_manifest(text: bytes, where: S3Url) -> tuple[Item, ...]:
    """The objects in a manifest. Raises ClusterError if the text is not a manifest."""
    try:
        manifest = decode(text, Manifest)
    except ValueError as error:
        raise ClusterError(f"{where}: not a manifest", hint="cluster data put --manifest writes one") from error
    if manifest.format != _FORMAT:
        raise ClusterError(f"{where}: a manifest of format {manifest.format}, this program knows {_FORMAT}")
    return manifest.objects


def write_manifest(connection: Connection, folder: S3Url, objects: Sequence[S3Object]) -> S3Url:
    """Writes the folder's manifest next to it; returns its URL. Raises UsageError, AwsError."""
    where = manifest_url(folder)
    body = msgspec.json.format(
        msgspec.json.encode(Manifest(format=_FORMAT, objects=make_items(folder, objects))), indent=1
    )
    connection.call("put_object", Bucket=where.bucket, Key=where.key, Body=body, ContentType="application/json")
    return where


def read_manifest(connection: Connection, folder: S3Url) -> tuple[Item, ...]:
    """The objects in a folder's manifest. Raises UsageError, NotFoundError, AwsError, ClusterError if it is broken."""
    where = manifest_url(folder)
    try:
        return parse_manifest(connection.read(where), where)
    except NotFoundError as error:
        hint = f"cluster data verify {folder} DIR, or cluster data put --manifest DIR {folder}"
        raise NotFoundError(f"{error.message}: the folder has no manifest", hint=hint) from error
