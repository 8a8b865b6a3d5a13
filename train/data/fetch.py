"""Downloads a public dataset and writes it as files that MXNet reads.

Each file comes from the first mirror that delivers it with the published SHA-256.
"""

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from foundation.errors import ClusterError
from foundation.file_lock import locked
from foundation.files import one_at_a_time
from foundation.progress import Event, Report
from train.data.datasets import Dataset, Source, Written

_WORKPLACE = ".cluster-fetch"
TIMEOUT_S = 30.0
ATTEMPTS = 4
"""The number of requests to a mirror for a file; those after a broken connection ask for the rest."""
PAUSE_S = 1.0
_CHUNK_BYTES = 1 << 18
# Statuses after which a retry may help. 416: the file on the mirror is shorter than the local part.
_RETRIED = frozenset({408, 416, 429})

Advance = Callable[[int], None]
"""Called with the number of bytes that arrived; negative when they are discarded."""


class MirrorError(Exception):
    """This mirror does not have the file, or has only a part of it or a different one; the message says which."""


class BrokenOffError(Exception):
    """The connection broke in the middle of a file; a retry may help."""


def fetch(
    dataset: Dataset, folder: Path, *, shards: int | None, cache: Path, report: Report, advance: Advance
) -> Written:
    """Downloads a dataset's files, unless they are in the cache, and writes the dataset into an empty folder.

    shards: the number of files of training records; None: the dataset's default. cache: the folder of downloaded files.
    Raises ClusterError.
    """
    sources = cache / "datasets"
    try:
        sources.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(sources, does="downloads a dataset", report=report):
            for source in dataset.sources:
                download(source, sources, report=report, advance=advance)
            began = time.monotonic()
            report(Event(kind="start", what=f"writing {dataset.name} as records"))
            written = dataset.write(sources, folder, shards or dataset.shards)
            report(Event(kind="done", what=f"wrote {dataset.name} as records", duration_s=time.monotonic() - began))
            return written
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ClusterError(
            f"{dataset.name} cannot be written: {where}{error.strerror or error}",
            hint=f"df -h {sources} {folder}",
        ) from error


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """Yields an empty folder in `parent`, removed at the end. First removes what a killed run left.

    Raises ClusterError if another run works there, or the folder cannot be created.
    """
    path = parent / _WORKPLACE
    with ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(parent, wait=False))
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        except BlockingIOError as error:
            raise ClusterError(f"another cluster data fetch writes to {parent}", hint="wait until it ends") from error
        except OSError as error:
            raise ClusterError(f"{parent} cannot be written to: {error.strerror}") from error
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        yield path


def move_into(written: Written, work: Path, folder: Path) -> None:
    """Moves the files written in `work` to a folder on the same file system, each atomically. Raises ClusterError."""
    try:
        for name in written.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / name).replace(target)
    except OSError as error:
        raise ClusterError(
            f"cannot write to {folder}: {error.filename2 or error.filename}: {error.strerror}"
        ) from error


def download(source: Source, folder: Path, *, report: Report, advance: Advance) -> Path:
    """Downloads the file into the folder, unless it already exists there; returns its path.

    Resumes NAME.part, which an interrupted run or a broken connection left, and discards it if the result is wrong.
    Raises ClusterError, with the error of each mirror, if none delivers the file; OSError for errors in the folder.
    """
    target, part = folder / source.name, folder / f"{source.name}.part"
    if target.exists() and _find_digest(target) == source.sha256:
        advance(source.size_bytes)
        return target
    if part.exists():
        advance(part.stat().st_size)
    said = []
    for url in source.urls:
        try:
            _download_from(url, source, part, advance)
        except MirrorError as error:
            said.append(f"{url}: {error}")
            report(Event(kind="warn", what=f"{said[-1]}{'' if url == source.urls[-1] else '; trying the next mirror'}"))
        else:
            return part.replace(target)
    raise ClusterError(
        f"{source.name} cannot be downloaded:\n  " + "\n  ".join(said),
        hint="run the command again later, or on a machine that reaches a mirror",
    )


def _find_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_from(url: str, source: Source, part: Path, advance: Advance) -> None:
    """Completes the file at `part`. Raises MirrorError, and then leaves a usable beginning of the file, or no file."""
    begun_elsewhere = part.exists()
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            _read_on(url, source, part, advance)
        except BrokenOffError as error:
            stopped = str(error)
        else:
            break
    else:
        raise MirrorError(f"{stopped}, {ATTEMPTS} times")
    found = _find_digest(part)
    if found != source.sha256:
        advance(-part.stat().st_size)
        part.unlink()
        if begun_elsewhere:
            # The part was perhaps not the beginning of this file, but an error page of a mirror.
            _download_from(url, source, part, advance)
            return
        raise MirrorError(f"not the published file: its SHA-256 is {found}, not {source.sha256}")


def _read_on(url: str, source: Source, part: Path, advance: Advance) -> None:
    """Appends the missing bytes, at most one more than the file's size. Raises MirrorError, BrokenOffError."""
    have = part.stat().st_size if part.exists() else 0
    if have >= source.size_bytes:
        return
    with _open(url, begin=have) as answer:
        if have and answer.status != http.client.PARTIAL_CONTENT:
            advance(-have)
            have = 0
        with part.open("ab" if have else "wb") as file:
            while data := _read(answer, min(_CHUNK_BYTES, source.size_bytes + 1 - have)):
                file.write(data)
                have += len(data)
                advance(len(data))
    if have < source.size_bytes:
        raise BrokenOffError(f"the connection ended after {have} of {source.size_bytes} bytes")


def _open(url: str, *, begin: int) -> http.client.HTTPResponse:
    if urlsplit(url).scheme not in ("http", "https"):
        raise MirrorError("not an http:// or https:// URL")
    # identity: the digest is that of the uncompressed file.
    headers = {"User-Agent": "mxnet-cluster", "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme is checked above
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - the same
    except urllib.error.HTTPError as error:
        said = f"{error.code} {error.reason}"
        error.close()
        if error.code >= 500 or error.code in _RETRIED:
            raise BrokenOffError(said) from error
        raise MirrorError(said) from error
    except urllib.error.URLError as error:  # the mirror was not reached
        raise MirrorError(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(str(error) or type(error).__name__) from error
    return answer


def _read(answer: http.client.HTTPResponse, size_bytes: int) -> bytes:
    try:
        return answer.read(size_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(str(error) or type(error).__name__) from error
