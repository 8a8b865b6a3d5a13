"""Renders the files that jobs have created, and the commands that copy them. Pure."""

import shlex
from collections.abc import Sequence

from node.protocol import JobHost, JobSpec, NewFiles
from provision.model import count
from train.follow.records import JobRecord
from train.job.defaults import find_option

MOST_NAMED = 5
MOST_HOSTS = 4
MOST_FOLDERS = 2


def find_results(job: JobSpec, files: Sequence[NewFiles]) -> str | None:
    """Returns the command that copies or lists the files that a job created; None if it is not known to have any.

    files: its new files.
    """
    prefix, url = _find_urls(job)
    if prefix and not _has_left(files):
        return f"cluster data ls {shlex.quote(prefix)}"
    return f"cluster results {job.id}" if files or url else None


def _find_urls(job: JobSpec) -> tuple[str, str]:
    """Returns the folders of --model-prefix and in [data] results; "" without one."""
    prefix = find_option(job.command, "--model-prefix") or ""
    return f"{prefix.rpartition('/')[0]}/" if prefix.startswith("s3://") else "", job.output_url or ""


def _has_left(files: Sequence[NewFiles]) -> bool:
    """Returns whether some files could not be copied to S3."""
    return any(one.is_left for one in files)


def describe_files(job: JobSpec, files: Sequence[NewFiles], *, hosts: Sequence[JobHost], has_ended: bool = True) -> str:
    """Describes where a job's own files are: its nodes and folder, and [data] results; "" for neither.

    files: its new files, once it has ended. hosts: those that have its files.
    """
    nodes = [host.name for host in hosts]
    prefix, url = _find_urls(job)
    results = prefix or url
    parts = []
    on_nodes = render_new_files(files)
    if nodes and job.cwd and (on_nodes or not has_ended or not results):
        on = f"on {', '.join(nodes) if len(nodes) <= MOST_HOSTS else count(len(nodes), 'node')}"
        what = on_nodes or (f"no new files {on}" if has_ended else on)
        parts.append(f"{what}, below {_find_folder(job.id, job.cwd)}")
    is_known = prefix or not has_ended or any(one.copied for one in files)
    known = "not all results are" if _has_left(files) else "results" if is_known else "results, if any,"
    return "; ".join([*parts, *([f"{known} in {results}"] if results else [])])


def _find_folder(job: str, cwd: str) -> str:
    """Returns the folder with a job's working folder and its $CLUSTER_OUTPUT_DIR; both, if there is none."""
    is_own = cwd.endswith(f"/{job}/work")
    return cwd.removesuffix("/work") if is_own else f"{cwd} and ~/.cluster/jobs/{job}/output"


def render_files(record: JobRecord) -> str:
    """Renders where a job's own files are, and the command that copies or lists them; "" before it starts."""
    job, files = record.spec, record.files
    command = find_results(job, files)
    does = "copies" if command is not None and command.startswith("cluster results") else "lists"
    where = describe_files(job, files, hosts=find_hosts(record), has_ended=record.has_ended)
    return "; ".join(filter(None, (where, f"{command} {does} them" if command is not None else "")))


def find_hosts(record: JobRecord) -> tuple[JobHost, ...]:
    """Returns the hosts that have a job's files."""
    return () if record.source == "s3" or record.started_at is None else record.nodes


def render_new_files(files: Sequence[NewFiles]) -> str:
    """Renders what is new on which node alone: "3 new files in out/ on node-1"; "" for nothing."""
    files = [one for one in files if one.count or one.is_part]
    if len(files) > MOST_HOSTS:
        total = sum(one.count for one in files)
        least = "at least " if any(one.is_part for one in files) else ""
        return f"{least}{count(total, 'new file')} on {len(files)} nodes"
    return ", ".join(_render_host(one) for one in files)


def _render_host(found: NewFiles) -> str:
    if not found.count:
        return f"perhaps new files on {found.host}, among too many to count"
    least = "at least " if found.is_part else ""
    folders = [folder for folder in found.folders if folder]
    named = ", ".join(folders[:MOST_FOLDERS]) + (" and others" if len(folders) > MOST_FOLDERS else "")
    return f"{least}{count(found.count, 'new file')}{f' in {named}' if named else ''} on {found.host}"


def render_skipped(texts: Sequence[str]) -> str:
    """Renders a few of many messages, one on each line."""
    more = len(texts) - MOST_NAMED
    return "\n".join([*texts[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
