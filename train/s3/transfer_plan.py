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
from pathlib import Path

from msgspec import Struct

from foundation.errors import UsageError
from train.s3.url import S3Object, S3Url, explain_key, explain_path, is_marker


class FoundFile(Struct, frozen=True, kw_only=True):
    """A local file at a source. name: the part of its path that is kept below the destination, with slashes.

    alone: it is the only source, so the destination may be its new name. problem: why it cannot be read; empty if it
    can.
    """

    path: Path
    name: str
    size_bytes: int
    alone: bool
    problem: str = ""


class FoundObject(Struct, frozen=True, kw_only=True):
    """An object at a source. name, alone: as for a local file; etag: the version of its content."""

    url: S3Url
    name: str
    size_bytes: int
    etag: str
    alone: bool


class Upload(Struct, frozen=True, kw_only=True):
    """The upload of one file to S3."""

    source: Path
    destination: S3Url
    size_bytes: int


class Download(Struct, frozen=True, kw_only=True):
    """The download of one object from S3, in the version that was listed (`etag`)."""

    source: S3Url
    destination: Path
    size_bytes: int
    etag: str


class TransferPlan(Struct, frozen=True, kw_only=True):
    """What a put or get is about to do.

    deletions: files or objects in the destination that are not at the sources; none if a source cannot be copied.
    refused: the sources that cannot be copied, each with the reason.
    """

    transfers: tuple[Upload | Download, ...]
    unchanged: tuple[Upload | Download, ...]
    deletions: tuple[S3Url | Path, ...]
    refused: tuple[str, ...] = ()


def plan_put(found: Sequence[FoundFile], destination: S3Url) -> tuple[tuple[Upload, ...], tuple[str, ...]]:
    """The uploads for these files, and the files that cannot be copied, each with the reason.

    Raises UsageError if two files would become the same object.
    """
    is_file_name = bool(destination.key) and not destination.key.endswith("/") and len(found) == 1 and found[0].alone
    uploads, refused = [], []
    for file in found:
        key = destination.key if is_file_name else destination.as_folder().key + file.name
        problem = file.problem or explain_key(key)
        if problem:
            refused.append(f"{file.path}: {problem}")
            continue
        url = S3Url(bucket=destination.bucket, key=key)
        uploads.append(Upload(source=file.path, destination=url, size_bytes=file.size_bytes))
    _refuse_collisions((str(upload.source), str(upload.destination)) for upload in uploads)
    return tuple(dict.fromkeys(uploads)), tuple(dict.fromkeys(refused))


def plan_get(
    found: Sequence[FoundObject], destination: str, *, folder_exists: bool
) -> tuple[tuple[Download, ...], tuple[str, ...]]:
    """The downloads of these objects, and the objects that cannot be copied, each with the reason.

    An object cannot be copied if its name would lead out of the destination. folder_exists: the destination is an
    existing folder. Raises UsageError if two objects would become the same file.
    """
    if len(found) == 1 and found[0].alone and not destination.endswith("/") and not folder_exists:
        return (_download(found[0], Path(destination)),), ()
    refused = [f"{item.url}: {problem}" for item in found if (problem := explain_path(item.name))]
    named = [_download(item, Path(destination, item.name)) for item in found if not explain_path(item.name)]
    _refuse_collisions((str(item.source), str(item.destination)) for item in named)
    return tuple(dict.fromkeys(named)), tuple(refused)


def _download(item: FoundObject, destination: Path) -> Download:
    return Download(source=item.url, destination=destination, size_bytes=item.size_bytes, etag=item.etag)


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
