"""Datasets to S3 and from S3: what `cluster data put` and `get` do, and by contents.py `ls`, `du` and `rm`.

Each function opens its own connections and is done when it returns. plan.py has the rules for names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import NotFoundError
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
from train.s3.contents import delete_objects, du, find_whole_buckets, ls, rm
from train.s3.destination import look, prepare_bucket
from train.s3.download_journal import DownloadJournal
from train.s3.earlier import find_earlier
from train.s3.find import find_objects
from train.s3.journal import find_journal
from train.s3.listing import Listing
from train.s3.local import find_files
from train.s3.local_folder import LocalFolder, refuse_links
from train.s3.manifest import manifest_url, write_manifest
from train.s3.partial_file import PartialFiles
from train.s3.plan import Download, Upload, plan_get, plan_put
from train.s3.transfer import Progress
from train.s3.url import parse_url

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
    """What was done; `carried_out` is False where it was decided against.

    unverified: what was fetched although S3 keeps no checksum of it that can be compared, so that its length alone was.
    """

    plan: Plan
    carried_out: bool
    unverified: Sequence[Download] = ()


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

    create_bucket: make the bucket, private, where there is none; see prepare_bucket. manifest: write the folder's, in
    the end. Raises UsageError for names that cannot be, NotFoundError for a source or bucket that does not exist,
    AwsError where S3 refuses, and, when all the others are copied, ClusterError that names each file that failed.
    """
    target = parse_url(destination)
    if manifest:
        manifest_url(target)
    if options.delete:
        refuse_partial_delete((source, Path(source).is_dir()) for source in sources)
    is_excluded = compile_excludes(options.exclude)
    files = find_files(sources)
    planned = plan_put([file for file in files if not is_excluded(file.name)], target)
    folder = target.as_folder()
    wire = transfer.open_wire(region=region)
    listing = Listing(wire, exact=options.delete)
    kept = {upload.destination for upload in planned}
    found = look(listing, planned, folder, kept, whole=options.delete)
    if found.bucket == "missing" and not create_bucket:
        _refuse_missing_bucket(target.bucket)
    to_copy, unchanged = choose_uploads(wire, planned, found.objects)
    surplus = find_surplus_objects(folder, found.objects, kept, is_excluded) if options.delete else ()
    plan = Plan(transfers=to_copy, unchanged=unchanged, deletions=surplus)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    if create_bucket:
        prepare_bucket(listing, found, target.bucket, region=region, report=report)
    journal = find_journal()
    earlier = find_earlier(wire, journal, target, to_copy, report)
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

    Nothing is ever written, or deleted, outside of the destination, whatever an object's key is, nor through a symbolic
    link below it. Raises as `put` does.
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
    if any(download.destination == folder for download in planned):
        folder = folder.parent  # it is the one file's own name
    refuse_links(folder, (download.destination for download in planned))
    to_copy, unchanged = choose_downloads(wire, planned)
    journal = DownloadJournal()
    surplus = find_surplus_files(folder, planned, journal.find_partials(), is_excluded) if options.delete else ()
    plan = Plan(transfers=to_copy, unchanged=unchanged, deletions=surplus)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    if not to_copy and not folder.is_dir():
        return Done(plan=plan, carried_out=True)
    local = LocalFolder(folder)
    files = PartialFiles(local, journal)
    files.find_earlier(planned, to_copy)
    unverified = transfer.apply(wire, to_copy, watch(to_copy), files=files)
    for path in surplus:
        local.remove(path)
    local.close()  # not after an interrupt, when a thread may still use it
    return Done(plan=plan, carried_out=True, unverified=unverified)


def _refuse_missing_bucket(bucket: str) -> None:
    raise NotFoundError(
        f"bucket {bucket} does not exist", hint="add --create-bucket to make it, private to this account"
    )
