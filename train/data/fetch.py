"""Downloads a public dataset and writes it as files that MXNet reads.

The mirrors of a file are asked in turn, each for what is missing, until the file has the published SHA-256.
"""

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foundation.errors import ClusterError
from foundation.files import one_at_a_time
from foundation.progress import Event, Report
from train.data.datasets import Dataset, Source, Written

_WORKPLACE = ".cluster-fetch"
TIMEOUT_S = 30.0
ROUNDS = 4
PAUSE_S = 1.0
_CHUNK_BYTES = 1 << 18

Advance = Callable[[int], None]
"""Called with the number of bytes that arrived; negative when they are discarded."""


class MirrorError(Exception):
    """A mirror does not send a file; the message says why."""


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
    """Yields an empty folder in `parent`, removed at the end. Raises ClusterError if it cannot be created."""
    path = parent / _WORKPLACE
    shutil.rmtree(path, ignore_errors=True)  # left by a killed run
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise ClusterError(f"{parent} cannot be written to: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


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

    Continues NAME.part, which an interrupted run or another mirror left. Raises ClusterError, with the last error of
    each mirror, if none delivers the file; OSError for errors in the folder.
    """
    target, part = folder / source.name, folder / f"{source.name}.part"
    if target.exists() and _find_digest(target) == source.sha256:
        advance(source.size_bytes)
        return target
    if part.exists():
        advance(part.stat().st_size)
    problems = dict.fromkeys(source.urls, "")
    for number in range(ROUNDS):
        time.sleep(PAUSE_S * number)
        for url in source.urls:
            try:
                _read_on(url, source, part, advance)
            except MirrorError as error:
                problems[url] = f"{url}: {error}"
                report(Event(kind="warn", what=problems[url]))
            else:
                return part.replace(target)
    raise ClusterError(
        f"{source.name} cannot be downloaded:\n  " + "\n  ".join(problems.values()),
        hint="run the command again later, or on a machine that reaches a mirror",
    )


def _find_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_on(url: str, source: Source, part: Path, advance: Advance) -> None:
    """Completes the file at `part`. Raises MirrorError, and then leaves a beginning of the file, or no file."""
    have = part.stat().st_size if part.exists() else 0
    with part.open("ab") as file:
        for at, data in _read(url, begin=have) if have < source.size_bytes else ():
            if at != have:  # the mirror sends all of it
                advance(-have)
                have = at
                file.truncate(at)
            file.write(data)
            have += len(data)
            advance(len(data))
            if have > source.size_bytes:
                break
    if have < source.size_bytes:
        raise MirrorError(f"the connection ended after {have} of {source.size_bytes} bytes")
    if (found := _find_digest(part)) != source.sha256:
        advance(-have)
        part.unlink()
        raise MirrorError(f"not the published file: its SHA-256 is {found}, not {source.sha256}")


def _read(url: str, *, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yields the pieces of a file, each with its offset; from 0 if the server knows no ranges. Raises MirrorError."""
    # identity: the digest is that of the uncompressed file.
    headers = {"User-Agent": "mxnet-cluster", "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the table of datasets has only https
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the same
            at = begin if answer.status == http.client.PARTIAL_CONTENT else 0
            while data := answer.read(_CHUNK_BYTES):
                yield at, data
                at += len(data)
    except urllib.error.HTTPError as error:
        error.close()
        raise MirrorError(f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise MirrorError(str(error) or type(error).__name__) from error
