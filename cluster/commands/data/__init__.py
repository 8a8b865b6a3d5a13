"""`cluster data ...`: each module has the commands of one kind."""

import importlib

import click

# Name -> where it is: a command imports its own module alone, for what the others need takes longer than a copy.
_COMMANDS = {
    "put": "transfer",
    "get": "transfer",
    "ls": "transfer",
    "du": "transfer",
    "rm": "transfer",
    "verify": "transfer",
    "pack": "records",
    "split": "records",
    "info": "records",
    "fetch": "datasets",
    "demo": "datasets",
}


class _LazyGroup(click.Group):
    """A group that imports a command's module when that command, or the list of all, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"cluster.commands.data.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group("data", cls=_LazyGroup)
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
