"""`cluster bench`."""

from typing import get_args

import click

from cluster.app import App, pass_app
from cluster.nodes.verification import measure_nodes, show_checks
from cluster.session import describe_and_warn, ready_nodes
from node.train_settings import KvStore

DIST_STORES = [name for name in get_args(KvStore) if name.startswith("dist")]


@click.command("bench")
@click.option("--kv-store", type=click.Choice(DIST_STORES), default="dist_sync", show_default=True, help="With MXNet.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def bench(app: App, *, kv_store: str, as_json: bool) -> None:
    """Measure the nodes, and MXNet's kv-store.

    It shows what `cluster verify --deep` measures, and what fails. It refuses to start while a job runs or waits.
    """
    app.enter_cloud()
    with ready_nodes(app, describe_and_warn(app)) as (nodes, _):
        checks = measure_nodes(app, nodes, kv_store=kv_store)
    show_checks(app, [one for one in checks if one.check == "measure" or one.status != "ok"], as_json=as_json)
