"""`cluster data ...`: each module contains the commands of one kind."""

import click

from cluster.commands import LazyGroup

# A command imports only its own module: importing the libraries of the others would take longer than a small copy.
COMMANDS: dict[str, tuple[str, str]] = {
    "put": ("cluster.commands.data.transfer:put", "Copy files, folders and globs to S3."),
    "get": ("cluster.commands.data.transfer:get", "Copy objects, folders and globs from S3."),
    "ls": ("cluster.commands.data.transfer:ls", "List buckets, or the contents of a folder."),
    "rm": ("cluster.commands.data.transfer:rm", "Delete objects, folders and buckets."),
    "pack": ("cluster.commands.data.records:pack", "Pack folders of images into RecordIO shards."),
    "split": ("cluster.commands.data.records:split", "Split .rec files into shards of another number or size."),
    "info": ("cluster.commands.data.records:info", "Show records, bytes, labels and shards of .rec files."),
    "fetch": ("cluster.commands.data.datasets:fetch", "Download a public dataset in MXNet's formats."),
    "demo": ("cluster.commands.data.datasets:demo", "Write a small real dataset without a download."),
}


@click.group("data", cls=LazyGroup, table=COMMANDS)
def data() -> None:
    """Transfer, check and create datasets.

    put and get name their targets as follows:

    \b
    SOURCE             target
    file               DST, or DST/file if DST ends with /
    folder, folder/    DST/...  (the contents of the folder)
    a b folder         DST/a, DST/b, DST/folder/...
    'glob*'            DST/name for each match

    In a glob, * and ? match within one folder, ** across folders. Quote globs, or the shell expands them.
    """  # noqa: D301 - click's mark for text that must not be wrapped
