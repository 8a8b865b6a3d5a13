"""`cluster iam-policy`."""

import click

from cluster.app import App, pass_app
from provision.operator_policy import render_operator_policy


@click.command("iam-policy")
@click.option("--all-clusters", is_flag=True, help="For clusters of any name in the region, not for this one alone.")
@pass_app
def command(app: App, *, all_clusters: bool) -> None:
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
            store_url=config.bootstrap.store,
        )
    )
    if profile == "auto":
        app.say(
            "note: who may make the nodes' role can give it any permission; instead, an administrator can make the "
            "instance profile, for [provision] instance_profile to name"
        )
    elif profile != "none":
        app.say(f"note: iam:PassRole is allowed for a role that is called {profile}, as its instance profile is")
