"""Finds the command that gets the files of a job. Pure."""

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from train.follow.records import JobRecord
from train.job.protocol import Order


def find_results(job: JobRecord | Order) -> str | None:
    """Returns the command that lists or copies the files that a job saved; None if it is not known to save any. Pure.

    The files are below --model-prefix, as in MXNet's examples, in the job's output folder, or in its working folder.
    """
    prefix = find_option(job.command, "--model-prefix")
    if prefix is not None and prefix.startswith("s3://"):
        return f"cluster data ls {shlex.quote(prefix.rpartition('/')[0] + '/')}"
    if job.output_url is not None and job.output_url.startswith("s3://"):
        return f"cluster data ls {shlex.quote(job.output_url)}"
    hosts = job.hosts if isinstance(job, Order) else job.nodes
    head = hosts[0].name if hosts else "node-0"
    if job.output_url is not None:  # on a volume
        folder = job.output_url.rstrip("/")
        return f"cluster cp {shlex.quote(f'{head}:{folder}')} ."
    if job.project is None:  # a shipped script, which saves files only if an option names a place
        return None
    place = job.sync_dst_dir or job.cwd if isinstance(job, Order) else job.cwd
    short = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1*", f"{head}:{place}/FILE")
    return f"cluster cp {shlex.quote(short)} ."


def find_option(words: Sequence[str], name: str) -> str | None:
    """Returns the value of the last `--name VALUE` or `--name=VALUE` among the words of a command. Pure."""
    found = None
    for word, following in pairwise([*words, ""]):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found or None
