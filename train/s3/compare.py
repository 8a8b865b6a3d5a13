"""Whether a folder in S3 holds what it should: what a local folder does, or what its manifest says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from provision.errors import NotFoundError
from train.s3.choice import compile_excludes
from train.s3.content import COMPARE_FIRST, COMPARE_MOST, is_same
from train.s3.crew import Check, gather
from train.s3.find import find_objects
from train.s3.listing import Listing
from train.s3.local import find_files
from train.s3.manifest import make_items, read_manifest
from train.s3.plan import FoundFile, FoundObject
from train.s3.transfer import open_wire
from train.s3.url import S3Url, parse_url
from train.s3.wire import Wire

_BLOCK_BYTES = 2**20
Kind = Literal["missing", "surplus", "size", "content"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """kind: `missing` in S3; `surplus`, only in S3; another `size`; the same size and another `content`."""

    name: str
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """compared: how many names there are on either side."""

    compared: int
    differences: tuple[Difference, ...]


def verify(url: str, local: str | None, *, region: str, exclude: Sequence[str] = ()) -> Verdict:
    """Compare what is in S3 with a local file or folder, or, where none is given, with the manifest beside it.

    Nothing of an object is read where S3 keeps a digest of its content that can be calculated here. Raises UsageError,
    NotFoundError for what is not there at all, AwsError, OSError.
    """
    where = parse_url(url)
    wire = open_wire(region=region)
    listing = Listing(wire)
    is_excluded = compile_excludes(exclude)
    if local is None:
        folder = S3Url(bucket=where.bucket, key=where.key.rstrip("/") + "/")
        wanted = read_manifest(wire, folder)
        there = make_items(folder, listing.list_objects(folder))
        return _compare(
            {item.name: item.size_bytes for item in wanted if not is_excluded(item.name)},
            {item.name: item.size_bytes for item in there if not is_excluded(item.name)},
            partial(_same_etag, {i.name: i.etag for i in wanted}, {i.name: i.etag for i in there}),
        )
    files = {file.name: file for file in find_files([local]) if not is_excluded(file.name)}
    objects = {item.name: item for item in _find(listing, where) if not is_excluded(item.name)}
    if len(files) == len(objects) == 1 and next(iter(files.values())).alone and next(iter(objects.values())).alone:
        # A file and an object that were named themselves may have different names.
        files = dict(zip(objects, files.values(), strict=True))
    return _compare(
        {name: file.size_bytes for name, file in files.items()},
        {name: item.size_bytes for name, item in objects.items()},
        partial(_same_content, wire, files, objects),
    )


def _find(listing: Listing, where: S3Url) -> Iterable[FoundObject]:
    try:
        return find_objects(listing, [where])
    except NotFoundError:
        listing.list_some(S3Url(bucket=where.bucket))  # raises where there is not even the bucket
        return ()


def _compare(wanted: Mapping[str, int], there: Mapping[str, int], is_equal: Callable[[str, Check], bool]) -> Verdict:
    names = sorted({*wanted, *there})

    def judge(name: str, go_on: Check) -> Difference | None:
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

    judged = gather(judge, names, first=COMPARE_FIRST, most=COMPARE_MOST)
    return Verdict(compared=len(names), differences=tuple(found for found in judged if found is not None))


def _same_etag(wanted: Mapping[str, str], there: Mapping[str, str], name: str, _go_on: Check) -> bool:
    return wanted[name] == there[name]


def _same_content(
    wire: Wire, files: Mapping[str, FoundFile], objects: Mapping[str, FoundObject], name: str, go_on: Check
) -> bool:
    item, path = objects[name], files[name].path
    ask = partial(wire.find_headers, item.url)
    same = is_same(path, size_bytes=item.size_bytes, etag=item.etag, find_headers=ask, go_on=go_on)
    # S3 says nothing that can be calculated here: the bytes themselves are compared.
    return _same_bytes(wire, item, path, go_on) if same is None else same


def _same_bytes(wire: Wire, item: FoundObject, path: Path, go_on: Check) -> bool:
    body = wire.call("get_object", Bucket=item.url.bucket, Key=item.url.key, IfMatch=item.etag)["Body"]
    with body, path.open("rb") as file:
        while True:
            go_on()
            ours, theirs = file.read(_BLOCK_BYTES), body.read(_BLOCK_BYTES)
            if ours != theirs:
                return False
            if not ours:
                return True
