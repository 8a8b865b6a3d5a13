"""Plans the transfers from sources to a destination: which file goes where. Pure.

The rules, in both directions, are those of `cp -r`, with rsync's trailing slash:

    source                                   becomes
    file              DST                    DST, or DST/file where DST is a folder
    folder, alone     DST                    DST/...: the folder's content
    folder/           DST                    DST/...: the folder's content
    a b folder        DST                    DST/a, DST/b, DST/folder/...
    'glob*'           DST                    DST/name for each match, a folder under its own name

In S3 a destination is a folder if it ends with a slash or is a bare bucket; on this machine also if the folder exists.
With several sources it is always a folder.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.errors import ClusterError, UsageError
from train.s3.client import S3Object
from train.s3.url import MAX_KEY_BYTES, S3Url, is_marker, is_safe_path


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFile:
    """A local file at a source. name: the part of its path that is kept below the destination, with slashes.

    alone: it is the only source, so the destination may be its new name.
    """

    path: Path
    name: str
    size_bytes: int
    alone: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundObject:
    """An object at a source. name, alone: as for a local file; etag: the version of its content."""

    url: S3Url
    name: str
    size_bytes: int
    etag: str
    alone: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """The upload of one file to S3."""

    source: Path
    destination: S3Url
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """The download of one object from S3, in the version that was listed (`etag`)."""

    source: S3Url
    destination: Path
    size_bytes: int
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a put or get is about to do. deletions: files or objects in the destination that are not at the sources."""

    transfers: tuple[Upload | Download, ...]
    unchanged: tuple[Upload | Download, ...]
    deletions: tuple[S3Url | Path, ...]


def plan_put(found: Sequence[FoundFile], destination: S3Url) -> tuple[Upload, ...]:
    """The uploads for these files.

    Raises UsageError if two files would become the same object, ClusterError if a file's name cannot be a key.
    """
    folder = destination.key
    if folder and not folder.endswith("/"):
        if len(found) == 1 and found[0].alone:
            file = found[0]
            return (Upload(source=file.path, destination=destination, size_bytes=file.size_bytes),)
        folder += "/"
    uploads = []
    for file in found:
        key = folder + file.name
        _check_key(key, file.path)
        url = S3Url(bucket=destination.bucket, key=key)
        uploads.append(Upload(source=file.path, destination=url, size_bytes=file.size_bytes))
    _refuse_collisions((str(upload.source), str(upload.destination)) for upload in uploads)
    return tuple(dict.fromkeys(uploads))


def plan_get(found: Sequence[FoundObject], destination: str, *, folder_exists: bool) -> tuple[Download, ...]:
    """The downloads of these objects. folder_exists: the destination is an existing folder.

    Raises ClusterError for an object whose name would lead out of the destination, and UsageError if two would become
    the same file, or a name both a file and a folder.
    """
    unsafe = [str(item.url) for item in found if not is_safe_path(item.name)]
    if unsafe:
        raise ClusterError(
            "these names cannot be files below the destination, nothing was written:\n  " + "\n  ".join(unsafe),
            hint="get the others with a glob, or rename these",
        )
    if len(found) == 1 and found[0].alone and not destination.endswith("/") and not folder_exists:
        return (_download(found[0], Path(destination)),)
    downloads = tuple(dict.fromkeys(_download(item, Path(destination, item.name)) for item in found))
    _refuse_collisions((str(item.source), str(item.destination)) for item in downloads)
    files = {item.destination for item in downloads}
    for item in downloads:
        for parent in item.destination.parents:
            if parent in files:
                raise UsageError(f"{item.source} needs a folder {parent}, which is also the name of a file to write")
    return downloads


def _download(item: FoundObject, destination: Path) -> Download:
    return Download(source=item.url, destination=destination, size_bytes=item.size_bytes, etag=item.etag)


def _check_key(key: str, path: Path) -> None:
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise ClusterError(f"{path!s:.200}: the name is not UTF-8, which S3 needs") from None
    if length > MAX_KEY_BYTES:
        raise ClusterError(f"{path}: its key would have {length} bytes, S3 allows {MAX_KEY_BYTES}")


def _refuse_collisions(pairs: Iterable[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for source, destination in pairs:
        other = first.setdefault(destination, source)
        if other != source:
            raise UsageError(f"{other} and {source} would both become {destination}")


def find_surplus_objects(
    folder: S3Url, there: Iterable[S3Object], kept: Iterable[S3Url], is_excluded: Callable[[str], bool]
) -> tuple[S3Url, ...]:
    """The objects below the folder that are not in `kept`, except excluded ones and folder markers."""
    names = set(kept)
    return tuple(
        item.url
        for item in there
        if item.url.key.startswith(folder.key)
        and item.url not in names
        and not is_marker(item.url.key, item.size_bytes)
        and not is_excluded(item.url.key.removeprefix(folder.key))
    )
