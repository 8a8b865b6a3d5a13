"""Copies datasets to S3 and back: `cluster data put` and `get`; also exports `ls` and `rm` of contents.py.

Each function opens its own connections and closes them. transfer_plan.py has the rules for names.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct

from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.progress import Report
from train.s3 import transfer
from train.s3.connection import Connection
from train.s3.content import choose_downloads, choose_uploads
from train.s3.contents import delete_objects, find_whole_buckets, ls, rm
from train.s3.destination import describe_destination, prepare_bucket
from train.s3.partial_file import find_surplus_files, refuse_links, remove_unfinished
from train.s3.run_journal import Run, abort_unfinished, noted
from train.s3.sources import find_files, find_objects
from train.s3.transfer import Progress, is_in_parts
from train.s3.transfer_plan import Download, TransferPlan, Upload, find_surplus_objects, plan_get, plan_put
from train.s3.url import compile_excludes, has_glob, parse_url

__all__ = ["Done", "find_whole_buckets", "get", "ls", "put", "rm"]

# Takes the transfers that are about to start; returns their Progress.
Watch = Callable[[Sequence[Upload | Download]], Progress]
# Takes the plan; returns whether to carry it out.
Decide = Callable[[TransferPlan], bool]


class Done(Struct, frozen=True, kw_only=True):
    """The result of a put or get; `carried_out` is False if `decide` declined.

    unverified: downloads for which only the length was verified, because S3 keeps no checksum to compare with.
    """

    plan: TransferPlan
    carried_out: bool
    unverified: Sequence[Download] = ()


def put(
    sources: Sequence[str],
    destination: str,
    *,
    region: str,
    create_bucket: bool = False,
    delete: bool = False,
    exclude: Sequence[str] = (),
    report: Report,
    watch: Watch = lambda _: Progress(),
    decide: Decide = lambda _: True,
) -> Done:
    """Copies local files, folders and globs to S3, except files that it already has unchanged.

    create_bucket: create a missing bucket; see prepare_bucket. delete: delete objects at the destination that are not
    at the sources. exclude: patterns of names. Raises UsageError for impossible names, NotFoundError for a source or
    bucket that does not exist, AwsError if S3 refuses, and, after the others are copied, ClusterError that names each
    file that failed or cannot be copied; then it deletes nothing.
    """
    target = parse_url(destination)
    if delete:
        _refuse_partial_delete((source, Path(source).is_dir()) for source in sources)
    is_excluded = compile_excludes(exclude)
    files = find_files(sources)
    planned, refused = plan_put([file for file in files if not is_excluded(file.name)], target)
    if refused and not planned:
        raise _explain_refused(refused, planned)
    folder = target.as_folder()
    connection = Connection(region=region)
    kept = {upload.destination for upload in planned}
    found = describe_destination(connection, planned, folder, kept, whole=delete)
    if found.bucket == "missing" and not create_bucket:
        hint = "add --create-bucket to create it, private to this account"
        raise NotFoundError(f"bucket {target.bucket} does not exist", hint=hint)
    to_copy, unchanged = choose_uploads(connection, planned, found.objects)
    surplus = find_surplus_objects(folder, found.objects, kept, is_excluded) if delete and not refused else ()
    plan = TransferPlan(transfers=to_copy, unchanged=unchanged, deletions=surplus, refused=refused)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    if create_bucket:
        prepare_bucket(connection, found, target.bucket, report)
    abort_unfinished(connection, report)
    keys = tuple(upload.destination.key for upload in to_copy if is_in_parts(upload))
    run = Run(endpoint=connection.endpoint, bucket=target.bucket, keys=keys)
    with noted(run) if keys else nullcontext():
        transfer.apply(connection, to_copy, watch(to_copy), refused=refused)
    if refused:
        raise _explain_refused(refused, planned)
    delete_objects(connection, surplus, report)
    return Done(plan=plan, carried_out=True)


def get(
    sources: Sequence[str],
    destination: str,
    *,
    region: str,
    delete: bool = False,
    exclude: Sequence[str] | Callable[[str], bool] = (),
    watch: Watch = lambda _: Progress(),
    decide: Decide = lambda _: True,
) -> Done:
    """Copies objects, folders and globs from S3 to this machine, except files that it already has unchanged.

    Never writes or deletes outside of the destination, whatever an object's key is, nor through a symbolic link below
    it. exclude: patterns, or a function that says whether a name is excluded. Raises as `put` does.
    """
    if not destination:  # Path("") is the current folder
        raise UsageError("the destination is empty")
    urls = [parse_url(source, exact=True) for source in sources]
    is_excluded = exclude if callable(exclude) else compile_excludes(exclude)
    folder = Path(destination)
    connection = Connection(region=region)
    found = find_objects(connection, urls)
    if delete:
        named = {item.url for item in found if item.url in urls}
        _refuse_partial_delete((str(url), url not in named) for url in urls)
    wanted = [item for item in found if not is_excluded(item.name)]
    planned, refused = plan_get(wanted, destination, folder_exists=folder.is_dir())
    if refused and not planned:
        raise _explain_refused(refused, planned)
    if any(download.destination == folder for download in planned):
        folder = folder.parent  # the destination is a file name
    refuse_links(folder, (download.destination for download in planned))
    to_copy, unchanged = choose_downloads(connection, planned)
    surplus = find_surplus_files(folder, planned, is_excluded) if delete and not refused else ()
    plan = TransferPlan(transfers=to_copy, unchanged=unchanged, deletions=surplus, refused=refused)
    if not decide(plan):
        return Done(plan=plan, carried_out=False)
    remove_unfinished({download.destination.parent for download in planned})
    unverified = transfer.apply(connection, to_copy, watch(to_copy), refused=refused)
    if refused:
        raise _explain_refused(refused, planned)
    for path in surplus:
        path.unlink(missing_ok=True)
    return Done(plan=plan, carried_out=True, unverified=unverified)


def _explain_refused(refused: Sequence[str], planned: Sequence[Upload | Download]) -> ClusterError:
    hint = "rename them, or leave them out with --exclude PATTERN"
    return transfer.explain_failures(refused, of=len(planned) + len(refused), hint=hint)


def _refuse_partial_delete(sources: Iterable[tuple[str, bool]]) -> None:
    """Raises UsageError if a source of a --delete is not a folder. sources: (name, whether it is a folder)."""
    for source, is_folder in sources:
        if has_glob(source) or not is_folder:
            raise UsageError(
                f"{source}: not a folder, and --delete would delete everything else in the destination",
                hint="name only folders, or leave out --delete",
            )
