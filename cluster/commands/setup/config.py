"""`cluster config ...`: checks cluster.toml, and describes it for editors."""

import click

from cluster.app import App, pass_app
from cluster.commands import OrderedGroup
from cluster.config import AGAIN, ClusterConfig, find_mistakes
from foundation.errors import ConfigError
from foundation.schema import make_schema
from provision.model import count


@click.group("config", cls=OrderedGroup)
def config() -> None:
    """Check cluster.toml, or print its JSON schema."""


@config.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print the mistakes as JSON.")
@pass_app
def check(app: App, *, as_json: bool) -> None:
    """Check cluster.toml, and print all mistakes with their lines.

    It checks what the file says, and neither asks AWS nor connects to nodes. The exit code is 2 if there are mistakes.
    """
    path, mistakes = app.config_path, find_mistakes(app.config_path)
    lines = [f"{path}:{'' if one.line is None else f'{one.line}:'} {one.message}" for one in mistakes]
    document = {
        "path": str(path),
        "valid": not mistakes,
        "mistakes": [{"line": one.line, "key": one.key, "message": one.message} for one in mistakes],
    }
    app.show("\n".join(lines) or f"{path} is valid", document, as_json=as_json)
    if mistakes:
        raise ConfigError(f"{path} has {count(len(mistakes), 'mistake')}", hint=AGAIN.format(path=path))


@config.command("schema")
@pass_app
def schema(app: App) -> None:
    """Print the JSON schema of cluster.toml.

    `cluster init` saves it in the cache folder, and names it in the first line of cluster.toml, where editors find it.
    """
    app.print_json(make_schema(ClusterConfig, title="cluster.toml"))
