"""`cluster data put, get, ls, rm`: between files and S3."""

import time
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.transfer_progress import describe_transfers, transfer_progress
from provision.errors import UsageError
from train.s3 import operations as s3
from train.s3.client import S3Object
from train.s3.url import is_s3


@click.command("put", short_help="Copy files, folders and globs to S3.")
@click.argument("words", metavar="SOURCE... s3://BUCKET/DST", nargs=-1, required=True)
@click.option("--create-bucket", is_flag=True, help="Make the bucket, private, where there is none.")
@pass_app
def put(app: App, *, words: tuple[str, ...], create_bucket: bool) -> None:
    """Copy files, folders and globs to S3; `cluster data --help` has the rules for names.

    An object appears when all of it is there. A file that fails does not keep the others from being copied.
    """
    sources, destination = _split(words, "cluster data put SOURCE... s3://BUCKET/FOLDER/")
    if any(is_s3(source) for source in sources) or not is_s3(destination):
        raise UsageError(
            f"put copies from this machine to S3, not {' '.join(sources)} to {destination}",
            hint="cluster data put SOURCE... s3://BUCKET/FOLDER/, or cluster data get for the other direction",
        )
    app.enter_cloud(start_sandbox=True)
    began = time.monotonic()
    with transfer_progress(app.console) as progress:
        done = s3.put(
            sources,
            destination,
            region=app.config.provision.region,
            create_bucket=create_bucket,
            report=app.report,
            watch=progress.watch,
        )
    app.say(f"put {describe_transfers(done, began)} to {destination}")


@click.command("get", short_help="Copy objects, folders and globs from S3.")
@click.argument("words", metavar="s3://BUCKET/SOURCE... DST", nargs=-1, required=True)
@pass_app
def get(app: App, *, words: tuple[str, ...]) -> None:
    """Copy objects, folders and globs from S3; `cluster data --help` has the rules for names.

    A file appears when all of it is there, and never outside of DST.
    """
    usage = "cluster data get s3://BUCKET/SOURCE... DST"
    sources, destination = _split(words, usage)
    if not all(is_s3(source) for source in sources) or is_s3(destination):
        raise UsageError(
            f"get copies from S3 to this machine, not {' '.join(sources)} to {destination}",
            hint=f"{usage}, or cluster data put for the other direction",
        )
    app.enter_cloud()
    began = time.monotonic()
    with transfer_progress(app.console) as progress:
        done = s3.get(sources, destination, region=app.config.provision.region, watch=progress.watch)
    app.say(f"got {describe_transfers(done, began)} to {destination}")


@click.command("ls", short_help="List buckets, or what is in a folder.")
@click.argument("url", metavar="[s3://BUCKET/FOLDER/]", required=False)
@click.option("-r", "--recursive", is_flag=True, help="List all objects below the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@pass_app
def ls(app: App, *, url: str | None, recursive: bool, as_json: bool) -> None:
    """List the buckets, or the objects and folders in a folder: size in bytes, time of change (UTC), URL."""
    app.enter_cloud()
    entries = s3.ls(url, region=app.config.provision.region, recursive=recursive)
    if as_json:
        app.print_json([_as_document(entry) for entry in entries])
        return
    for entry in entries:
        app.print(_as_line(entry))


@click.command("rm", short_help="Delete objects, folders and buckets.")
@click.argument("urls", metavar="s3://BUCKET/KEY...", nargs=-1, required=True)
@click.option(
    "-r", "--recursive", is_flag=True, help="Folders with all that is in them; a bucket with all its objects."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a whole bucket is deleted.")
@pass_app
def rm(app: App, *, urls: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Delete objects, and with --recursive folders and whole buckets."""
    app.enter_cloud()
    buckets = s3.find_whole_buckets(urls, recursive=recursive)
    if buckets and not app.confirm(f"Delete {', '.join(buckets)} with everything in it?", yes=yes):
        app.say("nothing was deleted")
        return
    count = s3.rm(urls, region=app.config.provision.region, recursive=recursive)
    app.say(f"deleted {count} object{'' if count == 1 else 's'}")


def _split(words: tuple[str, ...], usage: str) -> tuple[tuple[str, ...], str]:
    if len(words) < 2:
        raise UsageError("a source and a destination are needed", hint=usage)
    return words[:-1], words[-1]


def _as_document(entry: s3.Entry) -> dict[str, Any]:
    if isinstance(entry, S3Object):
        modified = entry.modified.isoformat()
        return {"type": "object", "url": str(entry.url), "size_bytes": entry.size_bytes, "modified": modified}
    return {"type": "folder" if entry.key else "bucket", "url": str(entry)}


def _as_line(entry: s3.Entry) -> str:
    if isinstance(entry, S3Object):
        return f"{entry.size_bytes:>15}  {entry.modified:%Y-%m-%d %H:%M:%S}  {entry.url}"
    return f"{'':>15}  {'':19}  {entry}"
