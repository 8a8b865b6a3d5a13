"""`cluster completion`: what a shell completes: commands, options, files, and the names of nodes."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from cluster.app import App, find_above, pass_app
from cluster.config import load_config
from foundation.errors import ClusterError

VARIABLE = "_CLUSTER_COMPLETE"
"""By which click's scripts ask the command, whose name is `cluster`."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_app
def completion(app: App, *, shell: str) -> None:
    """Print the script that completes commands in your shell."""
    found = get_completion_class(shell)
    if found is None:
        raise ClusterError(f"{shell}: completion is not supported")
    root = click.get_current_context().find_root().command
    app.print(found(root, {}, "cluster", VARIABLE).source())


def complete_nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the nodes that cluster.toml describes; nobody is asked."""
    path = ctx.find_root().params.get("config_path") or Path("cluster.toml")
    try:
        count = load_config(find_above(path) or path).provision.nodes
    except ClusterError:
        return []
    names = [f"node-{number}" for number in range(count)]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
