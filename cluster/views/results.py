"""Renders the files that jobs have created, and the commands that copy them. Pure."""

import shlex
from collections.abc import Sequence
from itertools import pairwise

from node.protocol import NewFiles, Order
from provision.model import count
from train.follow.records import JobRecord

MOST_NAMED = 5
MOST_HOSTS = 4
MOST_FOLDERS = 2


def find_results(job: JobRecord | Order, files: Sequence[NewFiles] = ()) -> str | None:
    """Returns the command that copies or lists the files that a job created; None if it is not known to have any.

    files: its new files, if its record is not known.
    """
    prefix = find_option(job.command, "--model-prefix")
    if prefix is not None and prefix.startswith("s3://"):
        return f"cluster data ls {shlex.quote(prefix.rpartition('/')[0] + '/')}"
    name, found = (job.job, files) if isinstance(job, Order) else (job.id, files or job.files)
    return f"cluster results {name}" if found or job.output_url is not None else None


def find_option(words: Sequence[str], name: str) -> str | None:
    """Returns the value of the last `--name VALUE` or `--name=VALUE` among the words of a command."""
    found = None
    for word, following in pairwise([*words, ""]):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found or None


def render_new_files(files: Sequence[NewFiles]) -> str:
    """Renders what is new on which node: "3 new files in out/ on node-1"; "" for nothing."""
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
