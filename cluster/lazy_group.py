"""Groups of commands that start fast."""

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs.

    table: for each command, in the order in which they are used, "module:attribute" and its short help.
    """

    def __init__(self, *words: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*words, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest command for one that does not exist."""
        import difflib  # noqa: PLC0415 - only on the way to an error

        if args and not args[0].startswith("-") and args[0] not in self.table:
            nearest = difflib.get_close_matches(args[0], self.table, n=1)
            suggestion = f' Did you mean "{nearest[0]}"?' if nearest else ""
            ctx.fail(f'There is no command "{args[0]}".{suggestion}')
        return super().resolve_command(ctx, args)
