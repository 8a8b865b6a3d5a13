"""`cluster data fetch` and `demo`: datasets by name."""

import filecmp
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from rich.filesize import decimal

from cluster.app import App, pass_app
from cluster.completion import FILE_OR_URL
from cluster.views.data import counting_bar, describe_others, describe_transfers, transfer_progress
from foundation.errors import NotFoundError, UsageError
from foundation.user_folders import cache_folder
from train.data.datasets import DATASETS, Dataset, Written, shard_names
from train.data.fetch import fetched
from train.data.work import move_files
from train.s3 import operations
from train.s3.transfer_plan import TransferPlan
from train.s3.url import S3Object, is_s3, parse_url


@click.command("fetch")
@click.argument("name", metavar="NAME", type=click.Choice(sorted(DATASETS)))
@click.argument("destination", metavar="DST", type=FILE_OR_URL)
@click.option("--shards", type=click.IntRange(1, 10000), help="Number of training shards.")
@click.option("--create-bucket", is_flag=True, help="Create the bucket (private, encrypted) if it does not exist.")
@pass_app
def fetch(app: App, *, name: str, destination: str, shards: int | None, create_bucket: bool) -> None:
    """Download a public dataset in MXNet's formats.

    NAME is mnist, cifar10 or digits; DST is a local folder or s3://BUCKET/FOLDER/. DST gets RecordIO shards in train/
    and val/; for mnist and digits also MNIST's four files. Downloads are checked against the published checksum and
    cached. digits needs no network.
    """
    dataset = DATASETS[name]
    if is_s3(destination):
        _fetch_to_s3(app, dataset, destination, shards=shards, create_bucket=create_bucket)
        return
    if create_bucket:
        raise UsageError(f"--create-bucket: {destination} is a folder of this machine, not s3://BUCKET/FOLDER/")
    _fetch_to_folder(app, dataset, Path(destination), shards=shards)


def _fetch_to_folder(app: App, dataset: Dataset, folder: Path, *, shards: int | None = None) -> None:
    there = [str(path.relative_to(folder)) for path in folder.glob("*/*.rec")]
    _refuse_others(dataset, str(folder), there, shards=shards)
    with _fetched(app, dataset, folder, shards=shards) as (work, written):
        old = [name for name in written.files if (folder / name).exists()]
        _, changed, broken = filecmp.cmpfiles(folder, work, old, shallow=False)
        _refuse(str(folder), [*changed, *broken], f"other files, which {dataset.name} would replace")
        move_files({name: work / name for name in written.files}, folder)
    app.message(f"{_describe(written)}, in {folder}")


def _fetch_to_s3(app: App, dataset: Dataset, destination: str, *, shards: int | None, create_bucket: bool) -> None:
    url = destination if destination.endswith("/") else f"{destination}/"
    app.enter_cloud(start_sandbox=True)
    # Check for conflicts before anything is downloaded.
    there = _list_names(url, region=app.config.provision.region, create_bucket=create_bucket)
    _refuse_others(dataset, url, there, shards=shards)
    with _fetched(app, dataset, cache_folder() / "datasets" / dataset.name, shards=shards) as (work, written):
        began = time.monotonic()

        def decide(plan: TransferPlan) -> bool:
            names = [str(transfer.destination).removeprefix(url) for transfer in plan.transfers]
            changed = [name for name in names if name in there]
            _refuse(url, changed, f"other files, which {dataset.name} would replace")
            return True

        with transfer_progress(app) as progress:
            done = operations.put(
                [f"{work}/"],
                url,
                region=app.config.provision.region,
                create_bucket=create_bucket,
                report=app.report,
                watch=progress.watch,
                decide=decide,
            )
    app.message(f"{_describe(written)}; put {describe_transfers(done, began)} to {url}{describe_others(done)}")


def _list_names(url: str, *, region: str, create_bucket: bool) -> list[str]:
    """Returns the objects below a URL, relative to it.

    Raises NotFoundError if the bucket does not exist and is not to be created, AwsError, UsageError.
    """
    try:
        entries = operations.ls(url, region=region, recursive=True)
    except NotFoundError:  # the folder or the bucket does not exist
        if not create_bucket:
            operations.ls(f"s3://{parse_url(url).bucket}", region=region)
        return []
    return [str(entry.url).removeprefix(url) for entry in entries if isinstance(entry, S3Object)]


def _refuse_others(dataset: Dataset, destination: str, there: list[str], *, shards: int | None) -> None:
    """Raises UsageError for a folder with other .rec files, as of an earlier fetch: MXNet reads all of them."""
    own = shard_names(shards or dataset.shards)
    records = [name for name in there if name.startswith(("train/", "val/")) and name.endswith(".rec")]
    others = sorted(name for name in records if name not in own)
    _refuse(destination, others, f"records that {dataset.name} would be mixed with")


def _refuse(destination: str, others: Sequence[str], what: str) -> None:
    """Raises UsageError if there are such files."""
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise UsageError(f"{destination} has {what}: {others[0]}{more}", hint="another DST, or delete them first")


@contextmanager
def _fetched(app: App, dataset: Dataset, parent: Path, *, shards: int | None) -> Iterator[tuple[Path, Written]]:
    if dataset.sources:
        app.message(f"{dataset.name}: {dataset.title}; a download of {decimal(dataset.size_bytes)}")
    with ExitStack() as stack:
        with counting_bar(app, dataset.name, dataset.size_bytes, "bytes") as bar:
            found = stack.enter_context(
                fetched(dataset, parent, shards=shards, cache=cache_folder(), report=app.report, advance=bar)
            )
        yield found


def _describe(written: Written) -> str:
    size = decimal(sum(written.files.values()))
    return (
        f"{written.train_images} images to train with and {written.val_images} to validate with: "
        f"{len(written.files)} files, {size}"
    )


@click.command("demo")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@pass_app
def demo(app: App, *, folder: Path) -> None:
    """Write a small real dataset without a download.

    It consists of 1797 handwritten digits, 1500 for training and 297 for validation, as MNIST's four
    files and as RecordIO shards.
    """
    _fetch_to_folder(app, DATASETS["digits"], folder)
