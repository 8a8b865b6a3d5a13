"""`cluster data put`, `get`, `ls` and `rm`: files and objects in S3."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from cluster.app import App, if_interrupted, pass_app
from cluster.completion import FILE_OR_URL
from cluster.views.data import (
    describe_others,
    describe_transfers,
    describe_unverified,
    transfer_progress,
)
from foundation.durations import render_time
from foundation.errors import NotFoundError, UsageError
from provision.model import count
from train.s3 import operations as s3
from train.s3.contents import Entry
from train.s3.transfer_plan import TransferPlan
from train.s3.url import S3Object, has_glob, is_s3

_exclude = click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Skip files and folders that match; repeatable."
)


def _how_to_copy(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that put and get have in common."""
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Delete without asking."),
        click.option("--dry-run", is_flag=True, help="Show what would be copied and deleted; change nothing."),
        _exclude,
        click.option("--delete", is_flag=True, help="Delete from DST what the sources do not have."),
    ):
        command = option(command)
    return command


@click.command("put")
@click.argument("words", metavar="SOURCE... s3://BUCKET/DST", type=FILE_OR_URL, nargs=-1, required=True)
@click.option("--create-bucket", is_flag=True, help="Create the bucket (private, encrypted) if it does not exist.")
@_how_to_copy
@pass_app
def put(
    app: App,
    *,
    words: tuple[str, ...],
    create_bucket: bool,
    delete: bool,
    exclude: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Copy files, folders and globs to S3.

    `cluster data --help` shows how targets are named. Files whose content is already in S3 are skipped. An object
    appears only when it is complete. If a file fails, the others are still copied. To resume after an interruption, run
    the same command again.
    """
    sources, destination = _split(words, "cluster data put SOURCE... s3://BUCKET/FOLDER/")
    if any(is_s3(source) for source in sources) or not is_s3(destination):
        raise UsageError(
            f"put copies from this machine to S3, not {' '.join(sources)} to {destination}",
            hint="cluster data put SOURCE... s3://BUCKET/FOLDER/, or cluster data get for the other direction",
        )
    missing = next((source for source in sources if not has_glob(source) and not os.path.lexists(source)), None)
    if missing is not None:  # before a sandbox is started
        raise NotFoundError(f"{missing}: no such file or folder", hint=f"ls {Path.cwd()} shows what is here")
    app.enter_cloud(start_sandbox=True)
    copy = partial(s3.put, create_bucket=create_bucket, report=app.report, delete=delete, exclude=exclude)
    _copy(app, "put", copy, sources, destination, dry_run=dry_run, yes=yes)


@click.command("get")
@click.argument("words", metavar="s3://BUCKET/SOURCE... DST", type=FILE_OR_URL, nargs=-1, required=True)
@_how_to_copy
@pass_app
def get(
    app: App,
    *,
    words: tuple[str, ...],
    delete: bool,
    exclude: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Copy objects, folders and globs from S3.

    `cluster data --help` shows how targets are named. Files that already have the same content are skipped. A file
    appears only when it is complete, and never outside DST. To resume after an interruption, run the same command
    again.
    """
    usage = "cluster data get s3://BUCKET/SOURCE... DST"
    sources, destination = _split(words, usage)
    if not all(is_s3(source) for source in sources) or is_s3(destination):
        raise UsageError(
            f"get copies from S3 to this machine, not {' '.join(sources)} to {destination}",
            hint=f"{usage}, or cluster data put for the other direction",
        )
    app.enter_cloud()
    _copy(app, "got", partial(s3.get, delete=delete, exclude=exclude), sources, destination, dry_run=dry_run, yes=yes)


def _copy(
    app: App,
    verb: str,
    copy: Callable[..., s3.Done],
    sources: Sequence[str],
    destination: str,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Copies the sources, and says what was done. verb: "put" or "got". copy: s3.put or s3.get with its own options."""
    began = time.monotonic()
    with if_interrupted(_again()), transfer_progress(app) as progress:
        done = copy(
            sources,
            destination,
            region=app.config.provision.region,
            watch=progress.watch,
            decide=lambda plan: _decide(app, plan, destination, dry_run=dry_run, yes=yes),
        )
    if done.unverified:
        app.warn(describe_unverified(done.unverified))
    if done.carried_out:
        app.message(f"{verb} {describe_transfers(done, began)} to {destination}{describe_others(done)}")
    elif done.plan.refused:
        raise click.exceptions.Exit(1)


@click.command("ls")
@click.argument("url", metavar="[s3://BUCKET/FOLDER/]", type=FILE_OR_URL, required=False)
@click.option("-r", "--recursive", is_flag=True, help="List all objects below the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@pass_app
def ls(app: App, *, url: str | None, recursive: bool, as_json: bool) -> None:
    """List buckets, or the contents of a folder.

    Each line shows the size, the time of the last change and the URL. For a 'glob*' it lists the objects and folders
    that match; see `cluster data --help`.
    """
    app.enter_cloud()
    entries = s3.ls(url, region=app.config.provision.region, recursive=recursive)
    if as_json:
        app.print_json([_as_document(entry) for entry in entries])
        return
    if entries:
        app.print_line(_render_row("SIZE", "MODIFIED", "URL"))
    for entry in entries:
        if isinstance(entry, S3Object):
            row = decimal(entry.size_bytes), render_time(entry.modified.timestamp()), str(entry.url)
        else:
            row = "-", "-", str(entry)
        app.print_line(_render_row(*row))


@click.command("rm")
@click.argument("urls", metavar="s3://BUCKET/KEY...", type=FILE_OR_URL, nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Delete folders and buckets with everything in them.")
@click.option("-y", "--yes", is_flag=True, help="Delete whole buckets without asking.")
@pass_app
def rm(app: App, *, urls: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Delete objects, folders and buckets."""
    app.enter_cloud()
    buckets = s3.find_whole_buckets(urls, recursive=recursive)
    if buckets:
        app.require(f"Delete {', '.join(buckets)} with everything in it?", yes=yes)
    deleted = s3.rm(urls, region=app.config.provision.region, recursive=recursive, report=app.report)
    app.message(f"deleted {count(deleted, 'object')}")


def _decide(app: App, plan: TransferPlan, destination: str, *, dry_run: bool, yes: bool) -> bool:
    if dry_run:
        for transfer in plan.transfers:
            app.print_line(f"copy    {transfer.source} -> {transfer.destination}")
        for what in plan.deletions:
            app.print_line(f"delete  {what}")
        for words in plan.refused:
            app.print_line(f"refuse  {words}")
        refused = f"{len(plan.refused)} that cannot be copied, " if plan.refused else ""
        app.message(
            f"{len(plan.transfers)} to copy, {refused}{len(plan.unchanged)} unchanged, "
            f"{len(plan.deletions)} to delete (dry run)"
        )
        return False
    if not plan.deletions:
        return True
    question = f"Delete {count(len(plan.deletions), 'file')} in {destination} that the source does not have?"
    app.require(question, yes=yes)
    return True


def _split(words: tuple[str, ...], usage: str) -> tuple[tuple[str, ...], str]:
    if len(words) < 2:
        raise UsageError("a source and a destination are needed", hint=usage)
    return words[:-1], words[-1]


def _as_document(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, S3Object):
        modified_at = entry.modified.isoformat()
        return {"kind": "object", "url": str(entry.url), "size_bytes": entry.size_bytes, "modified_at": modified_at}
    return {"kind": "folder" if entry.key else "bucket", "url": str(entry)}


def _render_row(size: str, modified: str, url: str) -> str:
    return f"{size:>9}  {modified:<20}  {url}"


def _again() -> str:
    """Returns the hint for a transfer that was interrupted."""
    return f"to copy what is missing, run again: {shlex.join(['cluster', *sys.argv[1:]])}"
