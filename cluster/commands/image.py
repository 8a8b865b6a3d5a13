"""`cluster image ...`: machine images of nodes that are set up."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from msgspec import to_builtins

from cluster.app import App, pass_app
from cluster.bring_up import check_inputs
from cluster.commands import OrderedGroup
from cluster.nodes import baking
from cluster.views.layout import render_table
from cluster.views.status import render_usd
from foundation.errors import NotFoundError
from provision.preflight.machines import describe_baked
from provision.preflight.prices import SNAPSHOT, find_volume_price
from provision.resources.image import delete_image


@click.group("image", cls=OrderedGroup)
def image() -> None:
    """Make, list and delete images of nodes that are set up."""


@image.command("bake")
@click.option("-y", "--yes", is_flag=True, help="Launch the instance that costs money without asking.")
@pass_app
def bake(app: App, *, yes: bool) -> None:
    """Make an image of a node that is set up.

    It launches an instance for this alone, sets it up as `cluster up` does, removes keys, history, logs, addresses and
    credentials, makes the image and deletes the instance. If the image exists, it does nothing.
    """
    _enter(app, start_sandbox=True)
    check_inputs(app)
    baking.bake(app, yes=yes)
    app.message('the image is ready; next: [provision] ami = "baked", then cluster up', style="green")


@image.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print the images as JSON.")
@pass_app
def ls(app: App, *, as_json: bool) -> None:
    """List the baked images in the region, newest first, with their cost."""
    _enter(app)
    images = describe_baked(app.clients.ec2)
    price = find_volume_price(app.clients, SNAPSHOT) if images else None
    found = [{**to_builtins(one), "usd_per_month": price and round(price * one.root_size_gib, 2)} for one in images]
    note = app.price_note and f"{app.price_note}; "
    app.show(_render(found, note=note, columns=app.find_columns()), found, as_json=as_json)


@image.command("rm")
@click.argument("which", metavar="NAME|ID")
@click.option("-y", "--yes", is_flag=True, help="Delete the image without asking.")
@pass_app
def rm(app: App, *, which: str, yes: bool) -> None:
    """Delete a baked image with its snapshots. Nodes that run from it keep running."""
    _enter(app)
    found = next((one for one in describe_baked(app.clients.ec2) if which in {one.image_id, one.name}), None)
    if found is None:
        raise NotFoundError(f"{app.config.provision.region} has no baked image {which}", hint="cluster image ls")
    app.require(f"Delete the image {found.name} ({found.image_id}) and its snapshots?", yes=yes)
    delete_image(app.clients, found)
    app.message(f"deleted the image {found.name} and its snapshots", style="green")


def _enter(app: App, *, start_sandbox: bool = False) -> None:
    app.check_has_instances("image", instead="install what all hosts need by their own means")
    app.enter_cloud(start_sandbox=start_sandbox)


def _render(found: Sequence[Mapping[str, Any]], *, note: str, columns: int | None) -> str:
    """Renders a table of the images in the JSON. Pure."""
    rows = [("NAME", "ID", "CLUSTER", "STATE", "MADE", "DISK", "MONTH")]
    for one in found:
        most = f"<= {render_usd(one['usd_per_month'])}"
        known = (one["name"], one["image_id"], one["cluster"], one["state"], (one["created_at"] or "-")[:10])
        rows.append((*known, f"{one['root_size_gib']} GiB", most))
    table = render_table(rows, columns=columns, drop=("CLUSTER", "STATE", "MADE"))
    return f"{table}\n({note}AWS bills the blocks in use)" if found else "there are no baked images"
