"""`cluster init`."""

from importlib.resources import files

import click

from cluster.app import App, pass_app
from provision.errors import ClusterError


@click.command("init")
@pass_app
def command(app: App) -> None:
    """Write an annotated cluster.toml here."""
    text = files("cluster").joinpath("default.toml").read_text(encoding="utf-8")
    try:
        with app.config_path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ClusterError(
            f"{app.config_path} exists already; it is left as it is", hint="cluster -c OTHER.toml init"
        ) from None
    except OSError as error:
        raise ClusterError(f"{app.config_path} cannot be written: {error}") from error
    app.say(f"{app.config_path} is written: read it, then run cluster up")
