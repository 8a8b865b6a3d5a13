"""Lists and deletes objects in S3: `cluster data ls` and `rm`."""

import shlex
from collections.abc import Sequence

from foundation.errors import ClusterError, NotFoundError, UsageError, list_lines
from foundation.progress import Event, Report, silent
from train.s3.connection import Connection
from train.s3.sources import find_matches, find_objects
from train.s3.url import S3Object, S3Url, has_glob, is_marker, parse_url

_DELETE_AT_ONCE = 1000  # S3's limit for one DeleteObjects
# A line of a listing: an object, or the URL of a bucket or folder.
Entry = S3Object | S3Url


def ls(url: str | None, *, region: str, recursive: bool = False) -> tuple[Entry, ...]:
    """The account's buckets (no URL), or the contents of a folder, sorted: objects, and folders as URLs.

    recursive: all objects below the folder instead, without folders. A URL without a trailing slash names an object or
    a folder. A glob lists its matches; with a trailing slash, the contents of the folders that match. If an object or
    folder has the glob as its name, lists only that. Raises UsageError, NotFoundError if nothing is found, AwsError.
    """
    where = parse_url(url, exact=True) if url else None
    connection = Connection(region=region)
    if where is None:
        buckets = connection.call("list_buckets").get("Buckets", [])
        return tuple(S3Url(bucket=bucket["Name"]) for bucket in buckets)
    try:
        return _list(connection, where, recursive=recursive)
    except NotFoundError:
        if not has_glob(where.key):
            raise
        return _list_matches(connection, where, recursive=recursive)


def find_whole_buckets(urls: Sequence[str], *, recursive: bool) -> tuple[str, ...]:
    """The buckets that `rm` would delete as a whole. Raises UsageError for a bad URL, or a bucket if not recursive."""
    targets = [parse_url(url, exact=True) for url in urls]
    buckets = tuple(dict.fromkeys(target.bucket for target in targets if not target.key))
    if buckets and not recursive:
        raise UsageError(
            f"s3://{buckets[0]}/ is a whole bucket, nothing was deleted", hint="add --recursive if you mean it"
        )
    return buckets


def rm(urls: Sequence[str], *, region: str, recursive: bool = False, report: Report = silent) -> int:
    """Deletes objects and, with `recursive`, folders and buckets with their contents; returns the number of objects.

    Warns if a bucket keeps the versions of what was deleted.
    Raises UsageError for a folder or bucket without `recursive`, NotFoundError if nothing is found, AwsError, and
    ClusterError that names each object that could not be deleted.
    """
    targets = [parse_url(url, exact=True) for url in urls]
    buckets = find_whole_buckets(urls, recursive=recursive)

    connection = Connection(region=region)
    keys = _keys_to_delete(connection, targets, recursive=recursive)
    for bucket, names in keys.items():
        _delete(connection, bucket, tuple(names), report)
    for bucket in buckets:
        connection.call("delete_bucket", Bucket=bucket)
    return sum(len(names) for names in keys.values())


def delete_objects(connection: Connection, urls: Sequence[S3Url], report: Report) -> None:
    """Deletes these objects of a bucket; warns as rm does.

    Raises AwsError, and ClusterError that names each object that could not be deleted.
    """
    if urls:
        _delete(connection, urls[0].bucket, [url.key for url in urls], report)


def _list(connection: Connection, where: S3Url, *, recursive: bool) -> tuple[Entry, ...]:
    if where.key and not where.key.endswith("/"):
        found = connection.find_object(where)
        if found is not None:
            return (found,)
        where = where.as_folder()
    entries: Sequence[Entry] = connection.list_objects(where, exact=True) if recursive else connection.list_level(where)
    if where.key and not entries:
        raise NotFoundError(f"{where}: no such object or folder", hint=f"cluster data ls s3://{where.bucket}/")
    shown = [
        entry for entry in entries if not isinstance(entry, S3Object) or not is_marker(entry.url.key, entry.size_bytes)
    ]
    return tuple(sorted(shown, key=lambda entry: entry.url if isinstance(entry, S3Object) else entry))


def _list_matches(connection: Connection, where: S3Url, *, recursive: bool) -> tuple[Entry, ...]:
    found: dict[S3Url, Entry] = {}
    for item, name in find_matches(connection, where):
        first, slash, _ = name.partition("/")
        if slash and not recursive:
            folder = S3Url(bucket=where.bucket, key=item.url.key.removesuffix(name) + first + slash)
            found[folder] = folder
        elif not is_marker(item.url.key, item.size_bytes):
            found[item.url] = item
    if not found:
        raise NotFoundError(f"{where}: no object matches", hint=f"cluster data ls s3://{where.bucket}/")
    return tuple(found[url] for url in sorted(found))


def _keys_to_delete(connection: Connection, targets: Sequence[S3Url], *, recursive: bool) -> dict[str, dict[str, None]]:
    """The keys by bucket, each key once."""
    keys: dict[str, dict[str, None]] = {}
    for target in targets:
        names = keys.setdefault(target.bucket, {})
        if not target.key:
            names.update({item.url.key: None for item in connection.list_objects(target, exact=True)})
            continue
        for item in find_objects(connection, [target], exact=True):
            is_match = has_glob(target.key) and not target.key.endswith("/") and "/" not in item.name
            if not recursive and not item.alone and not is_match:
                raise UsageError(
                    f"{target}: {item.url} is in a folder, nothing was deleted",
                    hint="add --recursive to delete the folder and everything in it",
                )
            names[item.url.key] = None
    return keys


def _delete(connection: Connection, bucket: str, keys: Sequence[str], report: Report) -> None:
    failed: list[str] = []
    keeps_versions = False
    for begin in range(0, len(keys), _DELETE_AT_ONCE):
        objects = [{"Key": key} for key in keys[begin : begin + _DELETE_AT_ONCE]]
        response = connection.call("delete_objects", Bucket=bucket, Delete={"Objects": objects})
        failed += [f"s3://{bucket}/{error['Key']}: {error['Message']}" for error in response.get("Errors", ())]
        keeps_versions |= any(item.get("DeleteMarker") for item in response.get("Deleted", ()))
    if keeps_versions:
        command = shlex.join(["aws", "s3api", "list-object-versions", "--bucket", bucket])
        what = f"the bucket has versioning: it keeps what was deleted, and S3 bills it; {command} shows it"
        report(Event(kind="warn", what=what, where=f"s3://{bucket}/"))
    if failed:
        raise ClusterError(f"{len(failed)} of {len(keys)} objects were not deleted:{list_lines(failed)}")
