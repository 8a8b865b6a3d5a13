"""A cache, on the user's machine, of the files that nodes need, addressed by their content.

wheels/SHA256/NAME    a file; it is always whole
KEY.json              the files that belong to a key such as "bundles/0123", with their URLs
"""

import hashlib
import json
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foundation.errors import ClusterError
from foundation.files import one_at_a_time, write_whole
from foundation.progress import Event, Report


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleFile:
    """A file that nodes need; `sha256` is in lower-case hexadecimal.

    path: its place on this machine, even before it is downloaded from one of `urls` (package_index.py).
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
    """Hashes and describes a file on this machine.

    Raises OSError; for archives, also zipfile.BadZipFile and tarfile.TarError.
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return BundleFile(path=path, sha256=digest, size_bytes=path.stat().st_size, unpacked_bytes=_unpacked_bytes(path))


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
        with tempfile.TemporaryDirectory(dir=wheels, prefix=".fetching-") as temporary:
            fetch(Path(temporary))
            files = tuple(_move(path, cache) for path in sorted(Path(temporary).iterdir()))
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
    return replace(described, path=path.replace(place))


def remember(cache: Path, key: str, files: Sequence[BundleFile]) -> None:
    """Records the files of a key. Raises OSError."""
    path = cache / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_record(files).encode())


def render_record(files: Sequence[BundleFile]) -> str:
    """The record of a key's files, as JSON. Pure."""
    entries = [
        {
            "name": file.name,
            "sha256": file.sha256,
            "size_bytes": file.size_bytes,
            "unpacked_bytes": file.unpacked_bytes,
            "urls": file.urls,
        }
        for file in files
    ]
    return json.dumps(entries, indent=2)


def find_kept(cache: Path, key: str, *, report: Report) -> tuple[BundleFile, ...] | None:
    """The files of a key; None if they are not recorded, or if a file without a URL is missing or truncated.

    Reports such a file. It does not check the content; the nodes do.
    """
    manifest = cache / f"{key}.json"
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        files = tuple(
            BundleFile(
                path=find_place(cache, entry["sha256"], entry["name"]),
                sha256=entry["sha256"],
                size_bytes=entry["size_bytes"],
                unpacked_bytes=entry["unpacked_bytes"],
                urls=tuple(entry["urls"]),
            )
            for entry in entries
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    lost = [file for file in files if not _is_whole(file)]
    for file in lost:
        file.path.unlink(missing_ok=True)
    if all(file.urls for file in lost):
        return files
    report(Event(kind="warn", what=f"{lost[0].path} is damaged or missing: fetching all of its bundle again"))
    manifest.unlink(missing_ok=True)  # another thread may have removed it, for another node
    return None


def _is_whole(file: BundleFile) -> bool:
    try:
        return file.path.stat().st_size == file.size_bytes
    except FileNotFoundError:
        return False
