"""A cache, on the user's machine, of the files that nodes need, addressed by their content.

wheels/SHA256/NAME    a file
KEY.json              the files that belong to a key such as "bundles/0123", with their URLs

A node that gets a damaged file reports it, and then it is removed here (transfer/distribute.py).
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bootstrap.step import step
from foundation.files import one_at_a_time, write_whole, written_whole
from foundation.progress import Event, Report

FETCHING = ".fetching-"
"""Prefix of the folders of a fetch_once."""


class BundleFile(Struct, frozen=True, kw_only=True):
    """A file that nodes need; `sha256` is in lower-case hexadecimal.

    path: its place on this machine, even before it is downloaded from one of `urls` (fetches.py).
    """

    path: Path
    sha256: str
    size_bytes: int
    urls: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name; the name of a wheel is part of its meaning."""
        return self.path.name


_RECORD = msgspec.json.Decoder(tuple[BundleFile, ...], dec_hook=lambda kind, name: kind(name))
"""Of what `render_record` writes. It is made before there are threads, as foundation/decode.py says."""


def check_cache(cache: Path) -> None:
    """Raises OSError if the folder is not writable, since no node could be set up."""
    cache.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=cache).close()


def describe_file(path: Path) -> BundleFile:
    """Hashes and describes a file on this machine. Raises OSError."""
    return BundleFile(path=path, sha256=find_digest(path), size_bytes=path.stat().st_size)


def find_digest(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_once(
    cache: Path, key: str, fetch: Callable[[Path], object], *, what: str, report: Report
) -> tuple[BundleFile, ...]:
    """The files of a key. If they are not cached, calls `fetch`, which writes them to a folder; sorts them by name.

    A killed process leaves no partial file. One process at a time. Raises OSError, and the errors of `fetch`.
    """
    wheels = cache / "wheels"
    with one_at_a_time(wheels, does="is fetching files for the nodes", report=report):
        kept = find_kept(cache, key, report=report)
        if kept is not None:
            return kept
        for left in (*cache.glob(f"{FETCHING}*"), *wheels.glob(f"{FETCHING}*")):  # by killed commands
            shutil.rmtree(left, ignore_errors=True)
        with step(report, what), tempfile.TemporaryDirectory(dir=wheels, prefix=FETCHING) as temporary:
            fetch(Path(temporary))
            files = tuple(_move(path, cache) for path in sorted(Path(temporary).iterdir()))
        remember(cache, key, files)
        return files


def cached_path(cache: Path, sha256: str, name: str) -> Path:
    """The path of a file in the cache. Pure."""
    return cache / "wheels" / sha256 / name


def copy_here(path: Path, cache: Path) -> BundleFile:
    """Copies a file of this machine to the cache. Raises OSError."""
    described = describe_file(path)
    kept = cached_path(cache, described.sha256, described.name)
    with written_whole(kept) as temporary:
        shutil.copyfile(path, temporary)
    return replace(described, path=kept)


def _move(path: Path, cache: Path) -> BundleFile:
    described = describe_file(path)
    target = cached_path(cache, described.sha256, path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    return replace(described, path=path.replace(target))


def remember(cache: Path, key: str, files: Sequence[BundleFile]) -> None:
    """Records the files of a key. Raises OSError."""
    path = cache / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_record(files).encode())


def render_record(files: Sequence[BundleFile]) -> str:
    """The record of a key's files, as JSON, with their names in place of their paths. Pure."""
    return msgspec.json.encode([replace(file, path=Path(file.name)) for file in files], enc_hook=str).decode()


def find_kept(cache: Path, key: str, *, report: Report) -> tuple[BundleFile, ...] | None:
    """The files of a key; None if they are not recorded, or if a file without a URL is missing."""
    try:
        found = _RECORD.decode((cache / f"{key}.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    files = tuple(replace(file, path=cached_path(cache, file.sha256, file.name)) for file in found)
    lost = next((file for file in files if not file.urls and not is_here(file)), None)
    if lost is None:
        return files
    report(Event(kind="warn", what=f"{lost.path} is damaged or missing: fetching all of its bundle again"))
    return None


def is_here(file: BundleFile) -> bool:
    """Whether a file is at its path on this machine, as far as its size shows: a node checks its SHA-256."""
    return file.path.is_file() and file.path.stat().st_size == file.size_bytes


def is_whole(file: BundleFile) -> bool:
    """Whether a file is at its path, undamaged. Hashes it, which takes 2 s per GB."""
    return is_here(file) and find_digest(file.path) == file.sha256
