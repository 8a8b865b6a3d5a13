"""`cluster completion`."""

import click
from click.shell_completion import get_completion_class

from cluster.app import App, pass_app
from cluster.completion import VARIABLE
from foundation.errors import ClusterError


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_app
def completion(app: App, *, shell: str) -> None:
    """Print the script that completes commands in your shell.

    It completes commands, options, and the names of nodes, jobs, files and datasets as the last commands saw them.
    """
    found = get_completion_class(shell)
    if found is None:
        raise ClusterError(f"{shell}: completion is not supported")
    root = click.get_current_context().find_root().command
    app.print(found(root, {}, "cluster", VARIABLE).source())
