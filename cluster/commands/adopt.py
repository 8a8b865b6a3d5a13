"""`cluster adopt` and `allow`: choose which instances are nodes, and the network from which they can be reached."""

from collections.abc import Collection, Sequence
from textwrap import indent

import click

from cluster.app import App, pass_app
from cluster.nodes.ec2 import describe_state
from cluster.views.clusters import render_owner
from cluster.views.layout import render_table
from cluster.views.status import untrusted_document
from foundation.durations import render_time
from foundation.errors import ClusterError, NotFoundError
from provision.allow import prepare_allow
from provision.apply import apply
from provision.model import ClusterState, UntrustedInstance
from provision.preflight.caller import find_account


@click.command("adopt")
@click.argument("instance_ids", metavar="[INSTANCE_ID]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Adopt instances without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print the instances, and which ones were adopted, as JSON.")
@pass_app
def adopt(app: App, *, instance_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Accept instances that this machine did not launch as nodes.

    Use this on a second machine or a colleague's: copy the cluster's private key there, then run this command. Without
    INSTANCE_ID, it adopts every instance of the cluster that qualifies. It refuses instances with another key pair or
    outside the cluster's security group.

    Adopt only instances that you recognize: a node receives your code, the job's AWS credentials and the values of
    --env. Do not rely on tags, not even on the owner's: whoever launched an instance could set them freely.
    """
    app.check_has_instances("adopt", instead="list the hosts in [hosts] names, then run cluster up")
    app.enter_cloud()
    state = describe_state(app)
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
        app.message(render_candidates(chosen))
    if not adopted:
        app.message(f"cluster {state.name}: nothing to adopt")
    elif app.files.find_public_key() is None:
        raise ClusterError(
            f"the private key of cluster {state.name} is not on this machine ({app.files.private_key})",
            hint="copy the file from the machine that made the cluster, then: cluster adopt",
        )
    else:
        app.require(f"Adopt {len(adopted)} of these instances?", yes=yes)
        with app.files.locked():
            app.files.note_launch(app.project_dir, account=find_account(app.clients))
            app.files.note_instances(instance.instance_id for instance in adopted)
        app.message(f"adopted {len(adopted)} of these instances; cluster status shows them as nodes", style="green")
    if as_json:
        app.print_json([{**untrusted_document(instance), "adopted": instance in adopted} for instance in chosen])


def choose(state: ClusterState, instance_ids: Collection[str]) -> tuple[UntrustedInstance, ...]:
    """Returns the untrusted instances with these ids, or all without ids. Pure. Raises NotFoundError."""
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
    """Renders the facts that are known about each instance, one paragraph for each. Pure."""
    lines = []
    for instance in instances:
        rows = [
            ("launched", render_time(instance.launched_at.timestamp())),
            ("owner tag", render_owner(instance.owner)),
            ("key pair", ascii(instance.key_name) if instance.key_name else "none"),
            ("groups", ", ".join(instance.group_ids) or "none"),
            ("image", instance.image_id),
            ("address", instance.public_ip or instance.private_ip or "none"),
        ]
        lines.append(f"{instance.instance_id}  {instance.instance_type}  {instance.state}")
        lines.append(indent(render_table(rows), "  "))
        lines += [f"  refused    {'; '.join(instance.problems)}"] if instance.problems else []
    return "\n".join(lines)


@click.command("allow")
@pass_app
def allow(app: App) -> None:
    """Allow ssh from this machine's current address.

    Use this when your address has changed and connections time out. The new rule replaces the previous one; rules that
    you created by hand stay. If [provision] ssh_from specifies a network, that network is allowed instead.
    """
    app.check_has_instances("allow", instead="cluster exec -- true, which shows the hosts that cannot be reached")
    app.enter_cloud()
    clients = app.clients
    plan, group, ssh_from = prepare_allow(clients, name=app.config.name, config=app.config.provision, files=app.files)
    apply(plan, clients=clients, files=app.files, report=app.report)
    app.print(render_allowed(group.ssh_from, group.ssh_open_to, ssh_from=ssh_from))


def render_allowed(before: Collection[str], open_to: Collection[str], *, ssh_from: str) -> str:
    """Describes from where ssh was and is allowed. Pure.

    before: the networks of this program's earlier rules. open_to: the networks of all rules, also manual ones.
    """
    by_hand = sorted(set(open_to) - set(before) - {ssh_from})
    others = f"; also from {', '.join(by_hand)}, by rules that were made by hand" if by_hand else ""
    if ssh_from in open_to and not set(before) - {ssh_from}:
        return f"ssh is allowed from {ssh_from}, as it was{others}"
    was = ", ".join(sorted(before)) or "nowhere"
    return f"ssh is allowed from {ssh_from}; it was from {was}{others}"
