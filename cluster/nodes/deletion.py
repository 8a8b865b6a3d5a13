"""Deletes a cluster of instances in all its regions, and prints the receipt."""

from collections.abc import Sequence
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from cluster.app import App, if_interrupted
from cluster.costs import find_bill, note_costs, noting_costs
from cluster.jobs import ask_for_job, end_jobs, require_ending, warn_uncopied
from cluster.session import describe, find_request, unmount_before
from foundation.errors import AwsError, ClusterError
from provision.aws.clients import Clients, make_clients
from provision.down import DownPlan, Receipt, add_receipts, prepare_down, receipt_document, render_receipt
from provision.down import down as carry_out
from provision.files import ClusterFiles
from provision.model import bake_name
from provision.regions import find_remains
from provision.render import render_plan
from provision.resources.instance_profile import KIND as ROLE


def delete_cluster(app: App, *, yes: bool, as_json: bool) -> None:
    """Deletes a cluster of instances, and prints the receipt. Raises AwsError, ClusterError."""
    if not app.find_cloud():
        _print(app, Receipt(cluster=app.config.name), as_json=as_json)
        return
    nodes = describe(app)
    find_job = ask_for_job(app, nodes, is_brief=yes)
    home = prepare_down(app.clients, request=find_request(app), files=app.files, report=app.report)
    elsewhere, errors = _prepare_elsewhere(app)
    parts = [_Part(clients=app.clients, files=app.files, prepared=home), *elsewhere]
    if any(part.prepared for part in parts):
        _show_plans(app, parts)
        job = find_job()
        warn_uncopied(app, job, yes=yes)
        if not yes:
            require_ending(app, "Delete all of this?", job)
        if job is not None and job.beside:  # notebooks: at their end, their last changes are copied
            end_jobs(app, nodes, lambda record: [host.name for host in record.nodes] if record.spec.beside else ())
    with if_interrupted("cluster down deletes what is left"):
        if parts[0].prepared:
            unmount_before(app)
        before = note_costs(app)  # the ledger may lack resources that are deleted now
        with noting_costs(app, exists=None):
            receipt = reduce(
                add_receipts,
                (carry_out(part.prepared, clients=part.clients, files=part.files, report=app.report) for part in parts),
            )
        receipt = replace(receipt, bill=find_bill(app, before))
    if receipt.leftovers or not app.is_temporary:
        _print(app, receipt, as_json=as_json)
    _check_receipt(app, receipt, errors)


def _check_receipt(app: App, receipt: Receipt, errors: Sequence[AwsError]) -> None:
    """Raises the error for what is left, or may be. errors: of regions that do not answer."""
    if receipt.leftovers:
        raise ClusterError("not everything could be deleted", hint="run cluster down again in a minute")
    for unseen in receipt.unseen:
        if unseen.kind == ROLE and app.config.provision.instance_profile == "auto":
            raise AwsError(f"the {ROLE} that `up` made may still be there: {unseen.why}", hint="cluster iam-policy")
    if errors:
        raise errors[0]


class _Part(Struct, frozen=True, kw_only=True):
    """The cluster's resources in one region."""

    clients: Clients
    files: ClusterFiles
    prepared: DownPlan


def _prepare_elsewhere(app: App) -> tuple[list[_Part], list[AwsError]]:
    """Plans the deletion of what a killed `up` has left in [provision] regions, or `image bake`. Raises AwsError.

    Returns an error for each of these regions that does not answer, which must not keep the cluster running.
    """
    config = app.config
    request = replace(find_request(app), volumes=())
    others = config.provision.regions
    having, errors = find_remains(make_clients, others, name=config.name)
    baking = replace(request, name=bake_name(config.name))
    parts = []
    for region, target in (*((other, request) for other in others), (config.provision.region, baking)):
        if region in errors:
            continue
        clients, files = make_clients(region), app.files_in(region, name=target.name)
        if region in having or files.exist:
            prepared = prepare_down(clients, request=target, files=files, report=app.report)
            parts.append(_Part(clients=clients, files=files, prepared=prepared))
    return parts, [AwsError(f"something may be left in {one.message}", hint=one.hint) for one in errors.values()]


def _show_plans(app: App, parts: Sequence[_Part]) -> None:
    for part in parts:
        if part.prepared and len(parts) > 1:
            app.message(f"in {part.clients.region}:")
        if part.prepared:
            app.message(render_plan(part.prepared.plan).rstrip())


def _print(app: App, receipt: Receipt, *, as_json: bool) -> None:
    text = render_receipt(receipt, price_note=app.price_note).rstrip()
    document = {**receipt_document(receipt), "simulated": bool(app.price_note)}
    app.show(text, document, as_json=as_json)
