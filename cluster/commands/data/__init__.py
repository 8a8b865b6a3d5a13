"""`cluster data ...`: each module has the commands of one kind."""

import click

from cluster.commands.data.datasets import demo
from cluster.commands.data.transfer import get, ls, put, rm


@click.group("data")
def data() -> None:
    """Datasets to S3 and from S3: files, folders and 'globs*', many at once.

    \b
    SOURCE             lands as
    file               DST, or DST/file where DST is a folder (ends with /)
    folder, alone      DST/...  what the folder holds
    folder/            DST/...  what the folder holds
    a b folder         DST/a, DST/b, DST/folder/...
    'glob*'            DST/name for each match

    In a glob, * and ? stay inside a folder and ** does not; quote it, or the shell expands it.
    """  # noqa: D301 - click's mark for text that is not to be wrapped


for command in (put, get, ls, rm, demo):
    data.add_command(command)
