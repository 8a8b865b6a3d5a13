"""Downloads a public dataset and writes it as files that MXNet reads.

The mirrors of a file are asked in turn, until one sends the file with the published SHA-256.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from bootstrap.environment.fetches import Advance, bring_here
from bootstrap.environment.file_cache import BundleFile, is_whole
from bootstrap.step import step
from foundation.files import one_at_a_time
from foundation.progress import Report
from train.data.datasets import Dataset, Written
from train.data.work import work_folder

_WORK = ".cluster-fetch"


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
            download(source, sources, advance=advance)
    parent.mkdir(parents=True, exist_ok=True)
    with (
        one_at_a_time(parent, does=f"writes {dataset.name} there", report=report),
        work_folder(parent / _WORK) as work,
    ):
        with step(report, f"writing {dataset.name} as records", done=f"wrote {dataset.name} as records"):
            written = dataset.write(sources, work, shards or dataset.shards)
        yield work, written


def download(source: BundleFile, folder: Path, *, advance: Advance) -> None:
    """Downloads the file into the folder, unless it already exists there. Raises ClusterError, OSError."""
    file = replace(source, path=folder / source.name)
    if is_whole(file):
        advance(file.size_bytes)
        return
    file.path.unlink(missing_ok=True)
    bring_here(file, advance=advance)
