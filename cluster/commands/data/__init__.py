"""`cluster data ...`: each module has the commands of one kind."""

import click

from cluster.commands import LazyGroup

# A command imports only its own module; the libraries of the others would take longer than a small copy.
COMMANDS: dict[str, tuple[str, str]] = {
    "put": ("cluster.commands.data.transfer:put", "Copy files, folders and globs to S3."),
    "get": ("cluster.commands.data.transfer:get", "Copy objects, folders and globs from S3."),
    "ls": ("cluster.commands.data.transfer:ls", "List buckets, or what is in a folder."),
    "du": ("cluster.commands.data.transfer:du", "Count objects and bytes by folder."),
    "rm": ("cluster.commands.data.transfer:rm", "Delete objects, folders and buckets."),
    "verify": ("cluster.commands.data.transfer:verify", "Compare a folder in S3 with a local one, or its manifest."),
    "pack": ("cluster.commands.data.records:pack", "Pack folders of images into RecordIO shards."),
    "split": ("cluster.commands.data.records:split", "Split .rec files into another number or size of shards."),
    "info": ("cluster.commands.data.records:info", "Tell what is in .rec files: records, labels, shards."),
    "fetch": ("cluster.commands.data.datasets:fetch", "Download a public dataset, and write it as MXNet reads it."),
    "demo": ("cluster.commands.data.datasets:demo", "Write a small real dataset, without a download."),
}


@click.group("data", cls=LazyGroup, table=COMMANDS)
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
