"""Folders of fetched files on the user's machine, each with a manifest: whole, or not there."""

import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.errors import ClusterError
from provision.progress import Event, Report

MANIFEST = "bundle.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleFile:
    """A file that nodes need; `sha256` in lower-case hexadecimal.

    path: where it lies on this machine, or will when it is brought here from one of `urls` (index.py).
    unpacked_bytes: what it grows to where it is unpacked; 0 for what is used as it is.
    """

    path: Path
    sha256: str
    size_bytes: int
    unpacked_bytes: int = 0
    urls: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name; for a wheel it is part of its meaning."""
        return self.path.name


def check_cache(cache: Path) -> None:
    """Raise ClusterError where no node could be set up, since nothing can be written to that folder."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise ClusterError(
            f"{cache}: what nodes are sent is kept and packed there, and it cannot be written to: {error.strerror}",
            hint="mend that, or set XDG_CACHE_HOME to another folder",
        ) from error


def describe_file(path: Path) -> BundleFile:
    """Hash a file. Raises OSError; for archives also zipfile.BadZipFile and tarfile.TarError."""
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
    directory: Path, fetch: Callable[[Path], dict[str, Any]], *, what: str, report: Report
) -> tuple[BundleFile, ...]:
    """The files of a folder, which `fetch` fills when they are not there, or not whole any more; in order of names.

    fetch: puts files into the folder that it is given, and returns what the manifest is to say beside them. What is
    killed meanwhile leaves no half folder. One process at a time. Raises what `fetch` raises, OSError.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent / f"{directory.name}.lock"):
        kept = find_kept(directory, report=report)
        if kept is not None:
            return kept
        started = time.monotonic()
        report(Event(kind="start", what=what))
        temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".fetching-"))
        try:
            fetched = _write_manifest(temporary, fetch(temporary))
            if directory.exists():  # damaged, or without a manifest
                shutil.rmtree(directory)
            temporary.rename(directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
        return tuple(replace(file, path=directory / file.name) for file in fetched)


def _write_manifest(directory: Path, about: dict[str, Any]) -> list[BundleFile]:
    found = sorted((describe_file(path) for path in directory.iterdir()), key=lambda file: file.name)
    entries = [
        {
            "name": file.name,
            "sha256": file.sha256,
            "size_bytes": file.size_bytes,
            "unpacked_bytes": file.unpacked_bytes,
            "mtime_ns": file.path.stat().st_mtime_ns,
        }
        for file in found
    ]
    (directory / MANIFEST).write_text(json.dumps({**about, "files": entries}, indent=2), encoding="utf-8")
    return found


def find_kept(directory: Path, *, report: Report) -> tuple[BundleFile, ...] | None:
    """What a folder holds; None where there is nothing, or files of it are gone or damaged, which it then names.

    A file whose size and time are those of the manifest is taken for whole; the nodes check the content.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        entries = [(_entry_file(directory, entry), int(entry["mtime_ns"])) for entry in manifest["files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    damaged = [file.path for file, mtime_ns in entries if not _is_whole(file, mtime_ns)]
    for path in damaged:
        report(Event(kind="warn", what=f"{path} is damaged or gone: all that was fetched with it is fetched again"))
        path.unlink(missing_ok=True)
    return None if damaged else tuple(file for file, _ in entries)


def _entry_file(directory: Path, entry: dict[str, Any]) -> BundleFile:
    return BundleFile(
        path=directory / entry["name"],
        sha256=entry["sha256"],
        size_bytes=entry["size_bytes"],
        unpacked_bytes=entry["unpacked_bytes"],
    )


def _is_whole(file: BundleFile, mtime_ns: int) -> bool:
    try:
        status = file.path.stat()
    except FileNotFoundError:
        return False
    if status.st_size != file.size_bytes:
        return False
    if status.st_mtime_ns != mtime_ns:
        with file.path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                return False
        os.utime(file.path, ns=(mtime_ns, mtime_ns))  # a copy of the cache, say: not to be read through each time
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time fetch; the kernel lets go of the lock when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
