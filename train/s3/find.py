"""What sources in S3 hold: objects, folders and globs, as `data get` and `data rm` are given them."""

import re
from collections.abc import Sequence

from provision.errors import NotFoundError
from train.s3.client import S3Object
from train.s3.listing import Listing
from train.s3.plan import FoundObject
from train.s3.url import S3Url, compile_glob, has_glob, is_marker, literal_prefix


def find_objects(listing: Listing, sources: Sequence[S3Url], *, with_markers: bool = False) -> tuple[FoundObject, ...]:
    """Every object at the sources, in their order.

    with_markers: also those that only stand for a folder; see url.is_marker.

    Raises NotFoundError for a source at which there is nothing, AwsError where S3 refuses.
    """
    found: list[FoundObject] = []
    for source in sources:
        objects = _find_one(listing, source, several=len(sources) > 1)
        objects = [item for item in objects if with_markers or not is_marker(item.url.key, item.size_bytes)]
        if not objects:
            what = "no object matches" if has_glob(source.key) else "no such object or folder"
            raise NotFoundError(f"{source}: {what}", hint=f"cluster data ls s3://{source.bucket}/")
        found += objects
    return tuple(found)


def _find_one(listing: Listing, source: S3Url, *, several: bool) -> list[FoundObject]:
    if source.key and not source.key.endswith("/"):
        item = listing.find_object(source)
        if item is not None:
            return [_found(item, source.key.rpartition("/")[2], alone=not several)]
    if has_glob(source.key):
        return [_found(item, name, alone=False) for item, name in find_matches(listing, source)]
    folder = source.as_folder().key
    keep_from = len(folder)
    if several and source.key and not source.key.endswith("/"):
        keep_from = source.key.rfind("/") + 1
    url = S3Url(bucket=source.bucket, key=folder)
    return [_found(item, item.url.key[keep_from:], alone=False) for item in listing.list_objects(url)]


def find_matches(listing: Listing, source: S3Url) -> list[tuple[S3Object, str]]:
    """Every object that matches a glob or is in a folder that does, and what of its key is kept; with markers.

    Raises UsageError for what is no glob, AwsError where S3 refuses.
    """
    pattern = compile_glob(source.key.rstrip("/"))
    folder = S3Url(bucket=source.bucket, key=literal_prefix(source.key))
    found = []
    for item in listing.list_objects(folder):
        name = matched_name(item.url.key, pattern, only_folders=source.key.endswith("/"))
        if name is not None:
            found.append((item, name))
    return found


def matched_name(key: str, pattern: re.Pattern[str], *, only_folders: bool) -> str | None:
    """What of a key is kept where it, or the outermost folder that it is in, matches; None if neither does.

    The match's own name is kept; with `only_folders` (a pattern that ends with a slash) only what is inside.
    """
    ends = [at for at, char in enumerate(key) if char == "/"]
    # Of `name/` nothing is behind the last slash, and a * stands for no empty name.
    for end in ends if only_folders or key.endswith("/") else [*ends, len(key)]:
        if pattern.fullmatch(key, 0, end):
            return key[end + 1 :] if only_folders else key[key.rfind("/", 0, end) + 1 :]
    return None


def _found(item: S3Object, name: str, *, alone: bool) -> FoundObject:
    return FoundObject(url=item.url, name=name, size_bytes=item.size_bytes, etag=item.etag, alone=alone)
