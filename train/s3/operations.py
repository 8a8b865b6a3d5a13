"""Datasets to S3 and from S3: what `cluster data put` and `get` do, and by contents.py `ls`, `du` and `rm`.

Each function opens its own connections and is done when it returns. plan.py has the rules for names.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ClusterError, NotFoundError
from provision.progress import Event, Report
from train.s3 import transfer
from train.s3.choice import (
    Plan,
    choose_downloads,
    choose_uploads,
    compile_excludes,
    find_surplus_files,
    find_surplus_objects,
    refuse_partial_delete,
)
from train.s3.client import S3AccessDeniedError, S3Object, open_s3
from train.s3.contents import delete_objects, du, find_whole_buckets, ls, rm
from train.s3.find import find_objects
from train.s3.journal import Entry, Journal, find_journal
from train.s3.landing import sweep
from train.s3.listing import Listing
from train.s3.local import find_files
from train.s3.manifest import manifest_url, write_manifest
from train.s3.plan import Download, Upload, plan_get, plan_put
from train.s3.transfer import Progress
from train.s3.upload import end_abandoned
from train.s3.url import S3Url, parse_url
from train.s3.wire import Wire

__all__ = ["DEFAULT", "Done", "Options", "du", "find_whole_buckets", "get", "ls", "put", "rm", "yes"]

# Given what is about to be copied, makes what is told of its progress.
Watch = Callable[[Sequence[Upload | Download]], Progress]
# Given the plan before it is carried out, says whether to.
Decide = Callable[[Plan], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What put and get have in common. delete: what the source does not have; exclude: patterns of names."""

    delete: bool = False
    exclude: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What was done; `carried_out` is False where it was decided against."""

    plan: Plan
    carried_out: bool


def yes(_plan: Plan) -> bool:
    """A Decide for callers that mean it."""
    return True


DEFAULT = Options()


def put(
    sources: Sequence[str],
    destination: str,
    *,
    region: str,
    create_bucket: bool = False,
    manifest: bool = False,
    options: Options = DEFAULT,
    report: Report,
    watch: Watch,
    decide: Decide = yes,
) -> Done:
    """Copy local files, folders and globs to S3, but for what is there already with the same content.

    create_bucket: make the bucket, private, where there is none. manifest: write the folder's, in the end. Raises
    UsageError for names that cannot be, NotFoundError for a source or bucket that does not exist, AwsError where S3
    refuses, and, when all the others are copied, ClusterError that names each file that failed.
    """
    target = parse_url(destination)
    if manifest:
        manifest_url(target)
    if options.delete:
        refuse_partial_delete((source, Path(source).is_dir()) for source in sources)
    is_excluded = compile_excludes(options.exclude)
    found = find_files(sources)
    planned = plan_put([file for file in found if not is_excluded(file.name)], target)
    folder = _as_folder(target)
    wire = transfer.open_wire(region=region)
    listing = Listing(wire)
    there = _list_destination(listing, planned, folder, whole=options.delete)
    if there is None and not create_bucket:
        _refuse_missing_bucket(target.bucket)
    to_copy, unchanged = choose_uploads(wire, planned, there or ())
    kept = {upload.destination for upload in planned}
    surplus = find_surplus_objects(folder, there or (), kept, is_excluded) if options.delete else ()
    plan = Plan(transfers=to_copy, unchanged=unchanged, deletions=surplus)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    if there is None:
        _create_bucket(target.bucket, region=region, report=report)
    journal = find_journal()
    earlier = _find_earlier(wire, journal, target, to_copy, report)
    transfer.apply(wire, to_copy, watch(to_copy), earlier=earlier, journal=journal)
    delete_objects(surplus, region=region)
    if manifest:
        where = write_manifest(wire, folder, listing.list_objects(folder))
        report(Event(kind="done", what="wrote the manifest", where=str(where)))
    return Done(plan=plan, carried_out=True)


def get(
    sources: Sequence[str],
    destination: str,
    *,
    region: str,
    options: Options = DEFAULT,
    watch: Watch,
    decide: Decide = yes,
) -> Done:
    """Copy objects, folders and globs from S3 to this machine, but for what is there already with the same content.

    Nothing is ever written, or deleted, outside of the destination, whatever an object's key is. Raises as `put` does.
    """
    urls = [parse_url(source) for source in sources]
    is_excluded = compile_excludes(options.exclude)
    folder = Path(destination)
    wire = transfer.open_wire(region=region)
    found = find_objects(Listing(wire), urls)
    if options.delete:
        named = {item.url for item in found if item.url in urls}
        refuse_partial_delete((str(url), url not in named) for url in urls)
    wanted = [item for item in found if not is_excluded(item.name)]
    planned = plan_get(wanted, destination, folder_exists=folder.is_dir())
    to_copy, unchanged = choose_downloads(wire, planned)
    surplus = find_surplus_files(folder, planned, is_excluded) if options.delete else ()
    plan = Plan(transfers=to_copy, unchanged=unchanged, deletions=surplus)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    sweep(to_copy, (download.destination.parent for download in planned))
    transfer.apply(wire, to_copy, watch(to_copy))
    for path in surplus:
        path.unlink(missing_ok=True)
    return Done(plan=plan, carried_out=True)


def _as_folder(url: S3Url) -> S3Url:
    key = url.key if not url.key or url.key.endswith("/") else url.key + "/"
    return S3Url(bucket=url.bucket, key=key)


def _list_destination(
    listing: Listing, planned: Sequence[Upload], folder: S3Url, *, whole: bool
) -> Sequence[S3Object] | None:
    """What is where the uploads go; None where there is no bucket. Who may not look finds nothing."""
    try:
        if len(planned) == 1 and not whole:
            found = listing.find_object(planned[0].destination)
            # Also of a bucket that does not exist S3 says that it has no such object.
            return [found] if found else listing.list_some(folder)
        return listing.list_objects(folder)
    except S3AccessDeniedError:
        if whole:
            raise
        return ()
    except NotFoundError:
        return None


def _refuse_missing_bucket(bucket: str) -> None:
    raise NotFoundError(
        f"bucket {bucket} does not exist", hint="add --create-bucket to make it, private to this account"
    )


def _create_bucket(bucket: str, *, region: str, report: Report) -> None:
    import asyncio  # noqa: PLC0415 - slow to import, and seldom needed

    async def create() -> None:
        async with open_s3(region=region) as client:
            await client.create_bucket(bucket)

    asyncio.run(create())
    report(Event(kind="done", what="made the bucket, private to this account", where=f"s3://{bucket}"))


def _find_earlier(
    wire: Wire, journal: Journal, target: S3Url, uploads: Iterable[Upload], report: Report
) -> dict[S3Url, Entry]:
    """What interrupted runs have begun below the destination: to go on with, or else ended here."""
    wanted = {upload.destination: upload for upload in uploads}
    earlier: dict[S3Url, Entry] = {}
    for entry in journal.take_abandoned(endpoint=wire.endpoint, bucket=target.bucket, prefix=target.key):
        url = S3Url(bucket=entry.begun.bucket, key=entry.begun.key)
        upload = wanted.get(url)
        if upload is not None and url not in earlier and entry.begun.is_of(upload.source):
            earlier[url] = entry
            continue
        try:
            end_abandoned(wire, entry)
        except ClusterError as error:
            entry.release()
            report(Event(kind="warn", what=f"an interrupted upload is still there: {error.message}", where=str(url)))
    return earlier
