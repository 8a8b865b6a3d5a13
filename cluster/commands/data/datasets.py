"""`cluster data fetch` and `demo`: datasets by name."""

import filecmp
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.filesize import decimal

from cluster.app import App, pass_app
from cluster.completion import FILE_OR_URL
from cluster.views.data import counting_bar
from foundation.errors import UsageError
from foundation.user_folders import cache_folder
from train.data.datasets import DATASETS, Dataset, shard_names
from train.data.fetch import fetched
from train.data.work import move_files
from train.s3.url import is_s3


@click.command("fetch")
@click.argument("name", metavar="NAME", type=click.Choice(sorted(DATASETS)))
@click.argument("folder", metavar="DIR", type=FILE_OR_URL)
@click.option("--shards", type=click.IntRange(1, 10000), help="Number of training shards.")
@pass_app
def fetch(app: App, *, name: str, folder: str, shards: int | None) -> None:
    """Download a public dataset in MXNet's formats.

    NAME is mnist, cifar10 or digits. DIR gets RecordIO shards in train/ and val/; for mnist and digits also MNIST's
    four files. Downloads are checked against the published checksum and cached. digits needs no network. `cluster data
    put` copies the folder to S3.
    """
    _fetch(app, DATASETS[name], folder, shards=shards)


def _fetch(app: App, dataset: Dataset, directory: str, *, shards: int | None = None) -> None:
    if is_s3(directory):
        name = dataset.name
        hint = f"cluster data fetch {name} {name}/, then cluster data put --create-bucket {name}/ {directory}"
        raise UsageError(f"{directory}: a dataset is written to a folder of this machine", hint=hint)
    folder = Path(directory)
    # Other .rec files, as of an earlier fetch, are refused: MXNet reads all of them.
    own = shard_names(shards or dataset.shards)
    there = sorted(str(path.relative_to(folder)) for part in ("train", "val") for path in folder.glob(f"{part}/*.rec"))
    others = [name for name in there if name not in own]
    _refuse(folder, others, f"records that {dataset.name} would be mixed with")
    if dataset.sources:
        app.message(f"{dataset.name}: {dataset.title}; a download of {decimal(dataset.size_bytes)}")
    with ExitStack() as stack:
        with counting_bar(app, dataset.name, dataset.size_bytes, "bytes") as bar:
            work, written = stack.enter_context(
                fetched(dataset, folder, shards=shards, cache=cache_folder(), report=app.report, advance=bar)
            )
        old = [name for name in written.files if (folder / name).exists()]
        _, changed, broken = filecmp.cmpfiles(folder, work, old, shallow=False)
        _refuse(folder, [*changed, *broken], f"other files, which {dataset.name} would replace")
        move_files({name: work / name for name in written.files}, folder)
    size = decimal(sum(written.files.values()))
    images = f"{written.train_images} images to train with and {written.val_images} to validate with"
    app.message(f"{images}: {len(written.files)} files, {size}, in {folder}")


def _refuse(folder: Path, others: Sequence[str], what: str) -> None:
    """Raises UsageError if there are such files."""
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise UsageError(f"{folder} has {what}: {others[0]}{more}", hint="another DIR, or delete them first")


@click.command("demo")
@click.argument("folder", metavar="DIR", type=FILE_OR_URL)
@pass_app
def demo(app: App, *, folder: str) -> None:
    """Write a small real dataset without a download.

    It consists of 1797 handwritten digits, 1500 for training and 297 for validation, as MNIST's four
    files and as RecordIO shards.
    """
    _fetch(app, DATASETS["digits"], folder)
