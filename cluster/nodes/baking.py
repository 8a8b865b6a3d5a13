"""Bakes an image: the steps of `cluster image bake`.

It is made of a node that is launched for this alone, in a cluster of a temporary name: a scrubbed node lets nobody in,
so a node of the user's would be lost. This one never has jobs, files or volumes.

1. What an earlier bake has left is deleted, as it may be half scrubbed.
2. The node is launched and set up as by `up`, and pulls [container] image.
3. scrub.sh comes last, and switches the node off at once: nothing is written afterwards, such as the end of a login.
4. The image is made of the stopped node's disk: its file system is whole, and no reboot starts anything on it.
5. The temporary cluster is deleted. After a kill before 4, the next run begins anew; after 4, it finds the image.
"""

import hashlib

from bootstrap.ssh.node_program import read_program
from cluster.app import App
from cluster.bring_up import up_in_a_region
from cluster.containers import find_login, prepare_image
from cluster.nodes.deletion import delete_cluster
from cluster.session import describe, find_recipe, ready_nodes
from foundation.errors import Interrupted
from foundation.remote_command import run_as_root
from provision.apply import apply
from provision.aws.clients import aws_errors
from provision.model import bake_name, resource_name
from provision.plan import Plan
from provision.preflight.caller import describe_caller
from provision.preflight.machines import describe_baked, describe_types, find_words
from provision.resources.image import CreateImage
from provision.resources.instances import WaitForStopped
from train.job.payload import shipped_scripts

SETTINGS = {  # of the node, where they differ from cluster.toml; a spot instance cannot be stopped
    "provision": {"nodes": 1, "min_nodes": "all", "regions": [], "instance_types": [], "market": "on-demand"},
    "lease": {"lifetime": "4h", "idle": "none", "budget_usd": "none", "then": "stop"},
    "bootstrap.sync": [],
}


def bake(app: App, *, yes: bool) -> None:
    """Makes an image unless it exists: asks, launches a node, deletes it, also after an error. Raises ClusterError."""
    cluster, config, clients = app.config.name, app.config.provision, app.clients
    with aws_errors("looking up the instance type"):
        facts = describe_types(clients.ec2, config, [config.instance_type])[config.instance_type]
    recipe = f"{find_words(facts)} {find_recipe(app)}"
    # The same settings give the same name, by which an interrupted bake is found.
    name = f"{resource_name(cluster)}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    exists = any(image.name == name for image in describe_baked(clients.ec2))
    own = {"name": bake_name(cluster), "train.script": shipped_scripts()[0], "volumes": []}
    own["provision.instance_profile"] = {"auto": "none"}.get(config.instance_profile, config.instance_profile)
    own["provision.ami"] = {"baked": "auto"}.get(config.ami, config.ami)
    app.is_temporary = True
    for key, value in {**SETTINGS, **own}.items():
        app.override(key, value)
    try:
        made_of = None if exists else _set_up(app, yes=yes)
        waits = [] if made_of is None else [WaitForStopped(instance_ids=(made_of,))]
        create = CreateImage(name=name, cluster=cluster, recipe=recipe, instance_id=made_of)
        owner = describe_caller(app.clients, config, ssh_from="").owner
        plan = Plan(cluster=app.config.name, owner=owner, tags=config.tags, steps=(*waits, create))
        apply(plan, clients=app.clients, files=app.files, report=app.report)
    except KeyboardInterrupt as error:  # the hint of `up` is about a node that stays
        raise Interrupted("cluster image bake again; or cluster down, if its node is still there") from error
    finally:
        if app.files.exist:
            delete_cluster(app, yes=True, as_json=False)


def _set_up(app: App, *, yes: bool) -> str:
    """Launches the node, sets it up and scrubs it; it then switches itself off. Returns its id. Raises ClusterError."""
    login = find_login(app)
    if app.files.exist:
        delete_cluster(app, yes=True, as_json=False)
    up_in_a_region(app, dry_run=False, yes=yes, keep_failed=False)
    with ready_nodes(app, describe(app)) as (ready, _):
        prepare_image(app, ready, login)
        scrub = run_as_root("sh", "-c", read_program("scrub.sh"))
        ready[0].connection.ask(scrub, {"scrubbed"}, timeout_s=900.0, what="scrub.sh")
    return ready[0].host.instance_id
