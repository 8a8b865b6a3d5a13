"""Compares a folder or object in S3 with a local one, by content: `cluster data verify`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from foundation.errors import ClusterError, NotFoundError, list_lines
from foundation.thread_pool import Check, map_in_threads
from train.s3.connection import Connection
from train.s3.content import COMPARED_AT_ONCE, is_same
from train.s3.sources import find_files, find_objects
from train.s3.transfer_plan import FoundObject
from train.s3.url import S3Url, compile_excludes, parse_url

_BLOCK_BYTES = 2**23
Kind = Literal["missing", "surplus", "size", "content"]


class Difference(Struct, frozen=True, kw_only=True):
    """kind: `missing` in S3; `surplus`, only in S3; `size` differs; the size is the same and `content` differs."""

    name: str
    kind: Kind


class Verdict(Struct, frozen=True, kw_only=True):
    """compared: the number of distinct names on both sides."""

    compared: int
    differences: tuple[Difference, ...]


def verify(url: str, local: str, *, region: str, exclude: Sequence[str] = ()) -> Verdict:
    """Compares an object or folder in S3 with a local file or folder.

    Reads an object only if S3 keeps no digest of it that this machine can calculate. Raises UsageError, NotFoundError
    if one side does not exist at all, ClusterError for a local file that cannot be read, AwsError, OSError.
    """
    where = parse_url(url, exact=True)
    connection = Connection(region=region)
    is_excluded = compile_excludes(exclude)
    files = {file.name: file for file in find_files([local]) if not is_excluded(file.name)}
    unreadable = [f"{file.path}: {file.problem}" for file in files.values() if file.problem]
    if unreadable:
        what = f"files that cannot be compared:{list_lines(unreadable)}"
        raise ClusterError(what, hint="--exclude PATTERN skips them")
    objects = {item.name: item for item in _find(connection, where) if not is_excluded(item.name)}
    if len(files) == len(objects) == 1 and next(iter(files.values())).alone and next(iter(objects.values())).alone:
        # One file and one object, each named by the user, may have different names.
        files = dict(zip(objects, files.values(), strict=True))

    def compare(name: str, go_on: Check) -> Difference | None:
        kind: Kind | None = None
        if name not in objects:
            kind = "missing"
        elif name not in files:
            kind = "surplus"
        elif files[name].size_bytes != objects[name].size_bytes:
            kind = "size"
        elif not _has_same_content(connection, files[name].path, objects[name], go_on):
            kind = "content"
        return Difference(name=name, kind=kind) if kind else None

    names = sorted({*files, *objects})
    found = map_in_threads(compare, names, threads=COMPARED_AT_ONCE)
    return Verdict(compared=len(names), differences=tuple(each for each in found if each is not None))


def _find(connection: Connection, where: S3Url) -> Sequence[FoundObject]:
    try:
        return find_objects(connection, [where])
    except NotFoundError:
        connection.list_objects(S3Url(bucket=where.bucket), limit=1)  # raises if the bucket does not exist either
        return ()


def _has_same_content(connection: Connection, path: Path, item: FoundObject, go_on: Check) -> bool:
    same = is_same(connection, path, item, go_on)
    if same is not None:
        return same
    # S3 keeps no digest that this machine can calculate: compare the bytes.
    with path.open("rb") as file:
        for begin in range(0, item.size_bytes, _BLOCK_BYTES):
            go_on()
            block = f"bytes={begin}-{begin + _BLOCK_BYTES - 1}"
            if file.read(_BLOCK_BYTES) != connection.read(item.url, Range=block, IfMatch=item.etag):
                return False
        return not file.read(1)
