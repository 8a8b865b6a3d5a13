"""A cache, on the user's machine, of the files that nodes need, addressed by their content.

wheels/SHA256/NAME    a file
KEY.json              the files that belong to a key such as "bundles/0123", with their URLs

A file that has changed since it was recorded is hashed again before it is used, and fetched again if it is damaged.
"""

import gzip
import hashlib
import json
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from foundation.decode import decode
from foundation.errors import ClusterError
from foundation.files import one_at_a_time, write_whole
from foundation.progress import Event, Report


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleFile:
    """A file that nodes need; `sha256` is in lower-case hexadecimal.

    path: its place on this machine, even before it is downloaded from one of `urls` (fetches.py).
    unpacked_bytes: its size when unpacked; 0 for a file that is not unpacked.
    """

    path: Path
    sha256: str
    size_bytes: int
    unpacked_bytes: int = 0
    urls: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name; the name of a wheel is part of its meaning."""
        return self.path.name


def check_cache(cache: Path) -> None:
    """Raises ClusterError if the folder is not writable, since no node could be set up."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise ClusterError(
            f"{cache}: cannot write to the cache of files for the nodes: {error.strerror}",
            hint="fix that, or set XDG_CACHE_HOME to another folder",
        ) from error


def describe_file(path: Path) -> BundleFile:
    """Hashes and describes a file on this machine. Raises OSError, and ClusterError for a damaged archive."""
    try:
        unpacked_bytes = _unpacked_bytes(path)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ClusterError(f"{path.name} is damaged: {error}", hint="run the command again") from error
    return BundleFile(
        path=path, sha256=find_digest(path), size_bytes=path.stat().st_size, unpacked_bytes=unpacked_bytes
    )


def find_digest(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def discard_folder(path: Path) -> None:
    """Removes a folder in the place of a file in the cache, which could not be replaced by the file. Raises OSError."""
    if path.is_dir():
        shutil.rmtree(path)


def discard(path: Path) -> None:
    """Removes what is in the place of a file in the cache, if anything. Raises OSError."""
    discard_folder(path)
    path.unlink(missing_ok=True)


def _unpacked_bytes(path: Path) -> int:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return sum(entry.file_size for entry in wheel.infolist())
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            return sum(entry.size for entry in archive)
    return 0


def fetch_once(
    cache: Path, key: str, fetch: Callable[[Path], object], *, what: str, report: Report
) -> tuple[BundleFile, ...]:
    """The files of a key. If they are not cached, calls `fetch`, which writes them to a folder; sorts them by name.

    A killed process leaves no partial file. One process at a time. Raises OSError, and the errors of `fetch`.
    """
    wheels = cache / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(wheels, does="is fetching files for the nodes", report=report):
        kept = find_kept(cache, key, report=report)
        if kept is not None:
            return kept
        started = time.monotonic()
        report(Event(kind="start", what=what))
        try:
            with tempfile.TemporaryDirectory(dir=wheels, prefix=".fetching-") as temporary:
                fetch(Path(temporary))
                files = tuple(_move(path, cache) for path in sorted(Path(temporary).iterdir()))
        except ClusterError:
            report(Event(kind="failed", what=what))
            raise
        remember(cache, key, files)
        report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
        return files


def find_place(cache: Path, sha256: str, name: str) -> Path:
    """The path of a file in the cache. Pure."""
    return cache / "wheels" / sha256 / name


def _move(path: Path, cache: Path) -> BundleFile:
    described = describe_file(path)
    place = find_place(cache, described.sha256, path.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    discard_folder(place)
    return replace(described, path=path.replace(place))


class _Entry(Struct, frozen=True):
    """A file in a record. modified_ns: of the file on this machine when it was last known to be whole."""

    name: str
    sha256: str
    size_bytes: int
    unpacked_bytes: int
    urls: tuple[str, ...]
    modified_ns: int | None = None


def remember(cache: Path, key: str, files: Sequence[BundleFile]) -> None:
    """Records the files of a key, those on this machine as whole. Raises OSError."""
    path = cache / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    discard_folder(path)
    write_whole(path, render_record(files, modified={file: _find_modified(file.path) for file in files}).encode())


def render_record(files: Sequence[BundleFile], *, modified: Mapping[BundleFile, int | None] | None = None) -> str:
    """The record of a key's files, as JSON. Pure. modified: see _Entry; unknown on another machine."""
    entries = [
        {
            "name": file.name,
            "sha256": file.sha256,
            "size_bytes": file.size_bytes,
            "unpacked_bytes": file.unpacked_bytes,
            "urls": file.urls,
            "modified_ns": (modified or {}).get(file),
        }
        for file in files
    ]
    return json.dumps(entries, indent=2)


def find_kept(cache: Path, key: str, *, report: Report) -> tuple[BundleFile, ...] | None:
    """The files of a key; None if they are not recorded, or if a file without a URL is missing or damaged.

    Reports and removes such a file.
    """
    manifest = cache / f"{key}.json"
    try:
        entries = decode(manifest.read_bytes(), tuple[_Entry, ...])
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return None
    modified = {
        BundleFile(
            path=find_place(cache, entry.sha256, entry.name),
            sha256=entry.sha256,
            size_bytes=entry.size_bytes,
            unpacked_bytes=entry.unpacked_bytes,
            urls=entry.urls,
        ): entry.modified_ns
        for entry in entries
    }
    files = tuple(modified)
    lost = [file for file in files if not is_whole(file, modified_ns=modified[file])]
    for file in lost:
        discard(file.path)
    if all(file.urls for file in lost):
        if any(modified[file] != _find_modified(file.path) for file in files):
            remember(cache, key, files)
        return files
    report(Event(kind="warn", what=f"{lost[0].path} is damaged or missing: fetching all of its bundle again"))
    manifest.unlink(missing_ok=True)  # another thread may have removed it, for another node
    return None


def is_whole(file: BundleFile, *, modified_ns: int | None = None) -> bool:
    """Whether a file is in the cache, undamaged. It is hashed (2 s per GB) unless it is unchanged since modified_ns.

    Raises OSError.
    """
    try:
        status = file.path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes:
        return False
    return status.st_mtime_ns == modified_ns or find_digest(file.path) == file.sha256


def _find_modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
