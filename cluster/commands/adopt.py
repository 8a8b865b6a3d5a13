"""`cluster adopt`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.listing import render_owner
from cluster.session import describe
from cluster.status import render_table, untrusted_document
from provision.errors import ClusterError, NotFoundError
from provision.model import ClusterState, UntrustedInstance


@click.command("adopt")
@click.argument("instance_ids", metavar="[INSTANCE_ID]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances are adopted.")
@click.option("--json", "as_json", is_flag=True, help="Print the instances, and which of them were adopted, as JSON.")
@pass_app
def command(app: App, *, instance_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Make nodes of instances that this machine did not launch.

    For a second machine, or a colleague's: copy the cluster's private key there, then run this. Without INSTANCE_ID it
    adopts every instance of the cluster that can be a node. Instances with another key pair, or outside the cluster's
    security group, are refused.

    Adopt only instances that you know of. A node receives your code, the job's AWS credentials and the values of --env,
    and the tags of an instance, its owner included, are whatever the one who launched it wrote there.
    """
    app.enter_cloud()
    state = describe(app)
    chosen = choose(state, instance_ids)
    refused = [instance for instance in chosen if instance.problems]
    if instance_ids and refused:
        listed = "\n".join(f"  {instance.instance_id}: {instance.why}" for instance in refused)
        raise ClusterError(
            f"{len(refused)} of these instances cannot be nodes of cluster {state.name}:\n{listed}",
            hint=f"end what is not yours to use: aws ec2 terminate-instances --instance-ids {refused[0].instance_id}",
        )
    adopted = [instance for instance in chosen if not instance.problems]
    if chosen:
        app.say(render_candidates(chosen))
    if not adopted:
        app.say(f"cluster {state.name}: nothing to adopt")
    else:
        if app.files.find_public_key() is None:
            raise ClusterError(
                f"the private key of cluster {state.name} is not on this machine ({app.files.private_key})",
                hint="copy the file from the machine that made the cluster, then: cluster adopt",
            )
        if not app.confirm(f"Adopt {len(adopted)} of these instances?", yes=yes):
            app.say("nothing was done")
            adopted = []
        else:
            with app.files.locked():
                app.files.note_instances(instance.instance_id for instance in adopted)
            app.say(f"adopted {len(adopted)} of these instances; cluster status shows them as nodes", style="green")
    if as_json:
        app.print_json([adoption_document(instance, adopted) for instance in chosen])


def choose(state: ClusterState, instance_ids: Collection[str]) -> tuple[UntrustedInstance, ...]:
    """The untrusted instances of these ids, or all of them. Raises NotFoundError. Pure."""
    nodes = {node.instance_id: node.name for node in state.nodes}
    untrusted = {instance.instance_id: instance for instance in state.untrusted}
    for instance_id in instance_ids:
        if instance_id in nodes:
            raise NotFoundError(f"{instance_id} is {nodes[instance_id]} of cluster {state.name} already")
        if instance_id not in untrusted:
            listed = ", ".join(untrusted) or "none"
            raise NotFoundError(
                f"cluster {state.name} has no instance {instance_id}", hint=f"those that could be adopted: {listed}"
            )
    return tuple(instance for instance in state.untrusted if not instance_ids or instance.instance_id in instance_ids)


def render_candidates(instances: Sequence[UntrustedInstance]) -> str:
    """What is known of each instance, one paragraph for each. Pure."""
    return "\n".join(line for instance in instances for line in _render(instance))


def adoption_document(instance: UntrustedInstance, adopted: Collection[UntrustedInstance]) -> dict[str, Any]:
    """One instance as `cluster adopt --json` prints it. Pure."""
    return {**untrusted_document(instance), "adopted": instance in adopted}


def _render(instance: UntrustedInstance) -> list[str]:
    rows = [
        ("launched", _render_time(instance.launched_at)),
        ("owner tag", render_owner(instance.owner)),
        ("key pair", ascii(instance.key_name) if instance.key_name else "none"),
        ("groups", ", ".join(instance.group_ids) or "none"),
        ("image", instance.image_id),
        ("address", instance.public_ip or instance.private_ip or "none"),
    ]
    table = "\n".join(f"  {line}" for line in render_table(rows).splitlines())
    refused = [f"  refused    {'; '.join(instance.problems)}"] if instance.problems else []
    return [f"{instance.instance_id}  {instance.instance_type}  {instance.state}", table, *refused]


def _render_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
