"""The command `ec2-sandbox`: its options, its help and its errors. commands.py has the subcommands.

They are imported only to run them, because what they need takes three times as long as the help.
"""

import os
import sys
from pathlib import Path
from typing import Any

import click

from ec2_sandbox.cli.examples import EXAMPLES, render_examples
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.progress import Event
from ec2_sandbox.sudo import become_caller

INTERRUPTED = 130  # 128 + SIGINT, as in shells
# In the order of use, with the first sentence of each one's help.
COMMANDS = {
    "setup": "Install the system packages that the sandbox needs on this machine.",
    "start": "Start the sandbox of this folder, and print the address of its API.",
    "stop": "Stop the sandbox and delete its instances and objects.",
    "reset": "Remove the sandbox, whatever state it is in.",
    "list": "List your sandboxes on this machine, of all folders.",
    "prune": "Remove sandboxes that have crashed or whose folder is gone.",
    "status": "Show the sandbox and its hosts.",
    "shell": "Open a shell for AWS tools, or run a command in one.",
    "env": "Print the environment variables for AWS tools.",
    "install": "Install distribution packages on all hosts.",
    "fault": "Inject a fault.",
    "faults": "List the armed faults.",
    "disarm": "Remove one armed fault, or all of them.",
    "log": "Show every API call since the sandbox started.",
}
# They enter an ordinary user's namespaces themselves, or do not need them.
OUTSIDE = ("setup", "start", "list", "prune")


def print_event(event: Event) -> None:
    """Prints an event to stderr; a step only when it has ended."""
    if event.kind != "start":
        took = "" if event.duration_s is None else f" ({event.duration_s:.1f} s)"
        click.echo(f"{'warning: ' if event.kind == 'warn' else ''}{event.what}{took}", err=True)


class Commands(click.Group):
    """The subcommands, of which the help needs only COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the commands in the order of use, not sorted by name."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Imports the command that is called."""
        name, found, rest = super().resolve_command(ctx, args)
        if name is None or found is None:
            return name, found, rest
        from ec2_sandbox.cli import commands  # noqa: PLC0415 - see above

        command = next(one for one in commands.COMMANDS if one.name == name)
        command.epilog = render_examples(EXAMPLES[name])
        return name, command, rest


@click.group(
    cls=Commands,
    commands={name: click.Command(name, short_help=text) for name, text in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=render_examples(EXAMPLES[""]),
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    help="The folder that the sandbox belongs to; default: this one.",
)
@click.option("--region", help="The region of a sandbox that is started; default: us-east-1.")
@click.option("--hosts", type=click.Choice(["real", "none"]), help="none: the API only, without hosts; default: real.")
@click.version_option(package_name="ec2-sandbox", prog_name="ec2-sandbox")
@click.pass_context
def cli(ctx: click.Context, /, *, folder: Path, **given: Any) -> None:
    """Run a local EC2 and S3, whose instances are real Linux hosts on this machine.

    Each folder has its own. [tool.ec2-sandbox] in its pyproject.toml has the settings, which the options override.
    """
    from ec2_sandbox import rootless  # noqa: PLC0415 - see above
    from ec2_sandbox.cli.commands import Caller  # noqa: PLC0415 - as above
    from ec2_sandbox.cli.settings import read_settings  # noqa: PLC0415 - as above

    ctx.obj = Caller(project_dir=folder)
    if ctx.invoked_subcommand in {"start", "shell"}:
        settings = read_settings(folder, {name: value for name, value in given.items() if value is not None})
        ctx.obj = Caller(
            project_dir=folder, region=settings.region, others=settings.others, config=settings.without_regions()
        )
    if ctx.invoked_subcommand not in OUTSIDE:
        rootless.enter(folder, start=False, report=print_event)


def main() -> None:
    """Runs the command and exits with its code: 0, 1 for a failure, 2 for wrong usage, 130 after an interrupt."""
    become_caller()
    try:
        code = cli.main(prog_name="ec2-sandbox", standalone_mode=False)
    except SandboxError as error:
        click.echo(f"error: {error.message}" + (f"\n  try: {error.hint}" if error.hint else ""), err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("error: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output has exited, as in `ec2-sandbox log | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
