"""Downloads a public dataset and writes it as files that MXNet reads.

The mirrors of a file are asked in turn, until one sends the file with the published SHA-256.
"""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foundation.errors import ClusterError
from foundation.files import one_at_a_time
from foundation.progress import Event, Report
from train.data.datasets import Dataset, Source, Written
from train.data.work import work_folder

_WORK = ".cluster-fetch"
TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 18

Advance = Callable[[int], None]
"""Called with the number of bytes that arrived; negative when they are discarded."""


class MirrorError(Exception):
    """A mirror does not send a file; the message says why."""


@contextmanager
def fetched(
    dataset: Dataset, parent: Path, *, shards: int | None, cache: Path, report: Report, advance: Advance
) -> Iterator[tuple[Path, Written]]:
    """Yields a folder in `parent` with the dataset, which is removed at the end, and what was written into it.

    shards: the number of files of training records; None: the dataset's default. cache: the folder of downloaded files.
    Raises ClusterError, OSError.
    """
    sources = cache / "datasets"
    with one_at_a_time(sources, does="downloads a dataset", report=report):
        for source in dataset.sources:
            download(source, sources, report=report, advance=advance)
    parent.mkdir(parents=True, exist_ok=True)
    with (
        one_at_a_time(parent, does=f"writes {dataset.name} there", report=report),
        work_folder(parent / _WORK) as work,
    ):
        began = time.monotonic()
        report(Event(kind="start", what=f"writing {dataset.name} as records"))
        written = dataset.write(sources, work, shards or dataset.shards)
        report(Event(kind="done", what=f"wrote {dataset.name} as records", duration_s=time.monotonic() - began))
        yield work, written


def download(source: Source, folder: Path, *, report: Report, advance: Advance) -> None:
    """Downloads the file into the folder, unless it already exists there.

    Raises ClusterError, with the last error of each mirror, if none delivers the file; OSError for other errors.
    """
    target, part = folder / source.name, folder / f"{source.name}.part"
    with suppress(FileNotFoundError, MirrorError):
        _check_digest(target, source.sha256)
        advance(source.size_bytes)
        return
    problems = []
    for url in source.urls:
        try:
            _download(url, source, part, advance)
        except MirrorError as error:
            problems.append(f"{url}: {error}")
            report(Event(kind="warn", what=problems[-1]))
        else:
            part.replace(target)
            return
    raise ClusterError(
        f"{source.name} cannot be downloaded:\n  " + "\n  ".join(problems),
        hint="run the command again later, or on a machine that reaches a mirror",
    )


def _check_digest(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise MirrorError(f"not the published file: its SHA-256 is {found}, not {sha256}")


def _download(url: str, source: Source, part: Path, advance: Advance) -> None:
    """Writes the file to `part`. Raises MirrorError."""
    have = 0
    try:
        with part.open("wb") as file:
            for data in _read(url):
                file.write(data)
                have += len(data)
                advance(len(data))
        if have < source.size_bytes:
            what = f"the connection ended after {have} of {source.size_bytes} bytes"
            raise MirrorError(what)  # noqa: TRY301 - as for other failures
        _check_digest(part, source.sha256)
    except MirrorError:
        advance(-have)
        part.unlink()
        raise


def _read(url: str) -> Iterator[bytes]:
    """Yields the pieces of a file. Raises MirrorError."""
    # identity: the digest is that of the uncompressed file.
    headers = {"User-Agent": "mxnet-cluster", "Accept-Encoding": "identity"}
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the table of datasets has only https
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the same
            while data := answer.read(_CHUNK_BYTES):
                yield data
    except urllib.error.HTTPError as error:
        error.close()
        raise MirrorError(f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise MirrorError(str(error) or type(error).__name__) from error
