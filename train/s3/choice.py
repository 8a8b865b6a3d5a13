"""What of a plan has to be done: not what is there already, nor what is excluded; and what is to be deleted."""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from provision.errors import UsageError
from train.s3.client import S3Object
from train.s3.content import COMPARE_FIRST, COMPARE_MOST, is_same
from train.s3.crew import Check, gather
from train.s3.plan import Download, Upload
from train.s3.url import S3Url, compile_glob, has_glob, is_marker
from train.s3.wire import Wire

Transfer = TypeVar("Transfer", Upload, Download)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a put or get is about to do. deletions: in the destination, what the source does not have."""

    transfers: tuple[Upload | Download, ...]
    unchanged: tuple[Upload | Download, ...]
    deletions: tuple[S3Url | Path, ...]


def compile_excludes(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name, as it is kept below the destination, is excluded: itself, or a folder that it is in.

    A pattern with a slash is for whole names, one without for the last part, at whatever depth. Raises UsageError.
    """
    compiled = [
        compile_glob(pattern.strip("/") if "/" in pattern.strip("/") else f"**/{pattern.strip('/')}")
        for pattern in patterns
    ]

    def is_excluded(name: str) -> bool:
        ends = [at for at, char in enumerate(name) if char == "/"]
        return any(pattern.fullmatch(name, 0, end) for pattern in compiled for end in [*ends, len(name)])

    return is_excluded


def refuse_partial_delete(sources: Iterable[tuple[str, bool]]) -> None:
    """--delete is for whole folders. sources: what was named, and whether it is a folder. Raises UsageError."""
    for source, is_folder in sources:
        if has_glob(source) or not is_folder:
            raise UsageError(
                f"{source}: not a folder, and --delete would delete everything else in the destination",
                hint="name folders alone, or leave --delete out",
            )


def choose_uploads(
    wire: Wire, planned: Sequence[Upload], there: Sequence[S3Object]
) -> tuple[tuple[Upload, ...], tuple[Upload, ...]]:
    """(to copy, unchanged): by content. Raises OSError for a file that cannot be read, ClusterError's kinds."""
    if not there:
        return tuple(planned), ()
    objects = {item.url: item for item in there}

    def is_there(upload: Upload, go_on: Check) -> bool:
        item = objects.get(upload.destination)
        if item is None or item.size_bytes != upload.size_bytes:
            return False
        ask = partial(wire.find_headers, item.url)
        return is_same(upload.source, size_bytes=item.size_bytes, etag=item.etag, find_headers=ask, go_on=go_on) is True

    return _part(planned, is_there)


def choose_downloads(wire: Wire, planned: Sequence[Download]) -> tuple[tuple[Download, ...], tuple[Download, ...]]:
    """(to copy, unchanged): by content. Raises as choose_uploads does."""
    if not any(download.destination.is_file() for download in planned):
        return tuple(planned), ()

    def is_there(download: Download, go_on: Check) -> bool:
        path = download.destination
        if not path.is_file() or path.stat().st_size != download.size_bytes:
            return False
        ask = partial(wire.find_headers, download.source)
        return is_same(path, size_bytes=download.size_bytes, etag=download.etag, find_headers=ask, go_on=go_on) is True

    return _part(planned, is_there)


def _part(
    planned: Sequence[Transfer], is_there: Callable[[Transfer, Check], bool]
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    same = gather(is_there, planned, first=COMPARE_FIRST, most=COMPARE_MOST)
    to_copy = tuple(transfer for transfer, there in zip(planned, same, strict=True) if not there)
    return to_copy, tuple(transfer for transfer, there in zip(planned, same, strict=True) if there)


def find_surplus_objects(
    folder: S3Url, there: Iterable[S3Object], kept: Iterable[S3Url], is_excluded: Callable[[str], bool]
) -> tuple[S3Url, ...]:
    """The objects below the folder that are none of those kept. What is excluded stays, and so do folders' markers."""
    names = set(kept)
    return tuple(
        item.url
        for item in there
        if item.url.key.startswith(folder.key)
        and item.url not in names
        and not is_marker(item.url.key, item.size_bytes)
        and not is_excluded(item.url.key.removeprefix(folder.key))
    )


def find_surplus_files(
    folder: Path, planned: Sequence[Download], partials: Collection[Path], is_excluded: Callable[[str], bool]
) -> tuple[Path, ...]:
    """The files below the folder that are no download's. Links are not followed; what is excluded stays.

    partials: the real paths of downloads' temporary files, which are left to those that made them.
    """
    real = Path(os.path.realpath(folder))
    kept = {download.destination for download in planned}
    kept |= {folder / path.relative_to(real) for path in partials if path.is_relative_to(real)}
    surplus = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths = [Path(root, name) for name in sorted(names)]
        surplus += [path for path in paths if path not in kept and not is_excluded(path.relative_to(folder).as_posix())]
    return tuple(surplus)
