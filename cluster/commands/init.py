"""`cluster init` and `iam-policy`: what is needed before the first `cluster up`."""

from importlib.resources import files

import click

from cluster.app import App, pass_app
from foundation.errors import ClusterError
from provision.aws.operator_policy import render_operator_policy


@click.command("init")
@pass_app
def init(app: App) -> None:
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


@click.command("iam-policy")
@click.option("--all-clusters", is_flag=True, help="For clusters of any name in the region, not for this one alone.")
@pass_app
def iam_policy(app: App, *, all_clusters: bool) -> None:
    """Print the least IAM policy that these commands need.

    It allows what this program does in AWS for the cluster, the region and the buckets of cluster.toml, and nothing
    else; it is meant for whoever runs these commands, not for the nodes. AWS is not asked.
    """
    config = app.config
    profile = config.provision.instance_profile
    app.print(
        render_operator_policy(
            config.provision,
            name=None if all_clusters else config.name,
            data_url=config.data.url,
            results_url=config.data.results,
        )
    )
    if profile == "auto":
        app.say(
            "note: who may make the nodes' role can give it any permission; instead, an administrator can make the "
            "instance profile, for [provision] instance_profile to name"
        )
    elif profile != "none":
        app.say(f"note: iam:PassRole is allowed for a role that is called {profile}, as its instance profile is")
