"""A dataset by its name, from where it is published to files that MXNet reads."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.errors import ClusterError
from provision.one_at_a_time import one_at_a_time
from provision.progress import Event, Report
from train.data.convert import Written
from train.data.datasets import Dataset
from train.data.download import Advance, download

_WORKPLACE = ".cluster-fetch"


def fetch(
    dataset: Dataset, folder: Path, *, shards: int | None, cache: Path, report: Report, advance: Advance
) -> Written:
    """Download a dataset's files, unless they are in the cache, and write it into an empty folder.

    shards: how many files of training records; None: the dataset's own number. cache: the folder where downloaded
    files are kept. advance: see Advance. Raises ClusterError.
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
    """An empty folder in another, gone in the end; what a run that was killed has left of it goes first.

    Raises ClusterError where another run works there, or it cannot be made.
    """
    path = parent / _WORKPLACE
    try:
        parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{parent} cannot be written to: {error.strerror}") from error
    try:
        # The kernel's lock: it ends with this process, however that ends.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        yield path
    except BlockingIOError as error:
        raise ClusterError(f"another cluster data fetch writes to {parent}", hint="wait for its end") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def move_into(written: Written, work: Path, folder: Path) -> Written:
    """Move what was written in `work` to its place in `folder` of the same file system; each file appears whole.

    Raises ClusterError.
    """
    files = []
    try:
        for path, size_bytes in written.files:
            target = folder / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.append((path.replace(target), size_bytes))
    except OSError as error:
        raise ClusterError(
            f"cannot write to {folder}: {error.filename2 or error.filename}: {error.strerror}"
        ) from error
    return Written(train_images=written.train_images, val_images=written.val_images, files=tuple(files))
