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

    It completes commands, options, files, and the nodes and datasets in cluster.toml.
    """
    found = get_completion_class(shell)
    if found is None:
        raise ClusterError(f"{shell}: completion is not supported")
    root = click.get_current_context().find_root().command
    app.print(ADDED.get(shell, "") + _adapt(found(root, {}, "cluster", VARIABLE).source()), wrapped=False)


ADDED = {"bash": "# s3://bucket and node-0:path are one word each.\nCOMP_WORDBREAKS=${COMP_WORDBREAKS//:/}\n"}


def _adapt(source: str) -> str:
    """Lets fish show a description up to its end, and not to its first comma."""
    return source.replace('string split ","', 'string split -m 1 ","')
