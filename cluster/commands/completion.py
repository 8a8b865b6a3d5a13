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
    """Print a shell completion script.

    It completes commands, options, files, and the nodes, jobs and datasets that recent commands saw.
    """
    found = get_completion_class(shell)
    if found is None:
        raise ClusterError(f"{shell}: completion is not supported")
    root = click.get_current_context().find_root().command
    app.print(found(root, {}, "cluster", VARIABLE).source(), wrapped=False)
