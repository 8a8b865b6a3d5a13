"""`down`: finds all resources of a cluster, deletes them, and checks for the receipt that nothing is left."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from foundation.errors import AwsError
from foundation.progress import Event, Report
from foundation.thread_pool import bounded_pool
from foundation.waiting import poll
from provision.apply import apply
from provision.aws.clients import Clients
from provision.cost.bill import ClusterBill
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.model import ClusterState
from provision.plan import Context, Plan, Request, Step
from provision.preflight.caller import find_account
from provision.preflight.machines import describe_baked
from provision.preflight.prices import find_volume_price
from provision.resources.launch_recovery import wait_for_interrupted_launches, wait_for_what_was_made
from provision.resources.resource import KeptVolume, Leftovers, Resource, Unseen
from provision.resources.shared_volume import SHARED_VOLUME
from provision.resources.table import KINDS
from provision.status import find_lease_end

LEFTOVERS_TIMEOUT_S = 60.0
"""Volumes and interfaces remain in EC2's lists a little longer than their instance."""

MAX_PASSES = 3
"""The most plans that one `down` applies, if it finds more of the cluster."""

LOCAL_FILES = "local files"
"""The kind that the receipt lists for ForgetFiles."""

_SHOWN = 8
_INDENT = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetFiles(Step):
    """Remove the cluster's private key, known hosts and journal from this machine."""

    def describe(self) -> str:
        """A short description of the step."""
        return "remove the cluster's key and known hosts from this machine"

    def deletions(self) -> Sequence[tuple[str, Sequence[str]]]:
        """All files count as one."""
        return ((LOCAL_FILES, ["private key, known hosts"]),)

    def apply(self, context: Context) -> bool:
        """Always returns True: at least the lock file exists."""
        context.files.forget()
        return True


class DownPlan(Struct, frozen=True, kw_only=True):
    """The plan of `down` and its context; false when nothing of the cluster exists.

    local_files: this machine has files of the cluster.
    lease_ended: how the lease has ended the cluster; None if it has not.
    """

    plan: Plan
    request: Request
    local_files: bool = False
    lease_ended: str | None = None

    def __bool__(self) -> bool:
        return bool(self.plan)


def prepare_down(
    clients: Clients,
    *,
    request: Request,
    files: ClusterFiles,
    report: Report,
) -> DownPlan:
    """Plans what `down` will do. Only reads.

    After an interrupted `up` it may wait: see wait_for_interrupted_launches. A refused read in IAM is not an
    error: the receipt lists it. Raises AwsError, ClusterError.
    """
    files.check_account(lambda: find_account(clients))
    wait_for_interrupted_launches(clients.ec2, name=request.name, files=files, report=report)
    wait_for_what_was_made(files=files, is_listed=lambda kind: _is_listed(kind, clients, request), report=report)
    state = _describe(clients, request, files)
    return DownPlan(
        plan=plan_down(state, local_files=files.exist),
        request=request,
        local_files=files.exist,
        lease_ended=find_lease_end(state, now=time.time()),
    )


def _is_listed(kind: str, clients: Clients, request: Request) -> bool:
    """Whether AWS lists a resource of this kind."""
    found = next(each.find_left for each in KINDS if each.kind == kind)(clients, request)
    return bool(found.left or found.kept)


def plan_down(state: ClusterState, *, local_files: bool = False) -> Plan:
    """Plans to delete everything that carries the cluster's tag, in the order that AWS requires. Pure.

    The tag decides, so that every machine can delete the cluster: untrusted instances are terminated, too. local_files:
    whether this machine has files of the cluster. They are removed last: until then `up` can continue.
    """
    kinds = [kind.plan_down for kind in reversed(KINDS) if kind.plan_down is not None]
    steps = tuple(step for plan in kinds for step in plan(state))
    return Plan(cluster=state.name, steps=(*steps, ForgetFiles()) if steps or local_files else ())


def down(prepared: DownPlan, *, clients: Clients, files: ClusterFiles, report: Report) -> "Receipt":
    """Applies the plan of prepare_down, then looks for more, and deletes that too.

    Returns the receipt. Raises the same errors as `apply`.
    """
    request, plans = prepared.request, [prepared.plan]
    apply(prepared.plan, clients=clients, files=files, report=report, is_down=True)
    found = _find_leftovers(clients, request, timeout_s=LEFTOVERS_TIMEOUT_S if prepared else 0.0)
    while any(one.left for one in found) and len(plans) < MAX_PASSES:
        done: set[Step] = {step for plan in plans for step in plan.steps}
        further = plan_down(_describe(clients, request, files), local_files=files.exist)
        if done.issuperset(further.steps):
            break
        report(Event(kind="info", what="found more of the cluster: deleting it as well"))
        apply(further, clients=clients, files=files, report=report, is_down=True)
        plans.append(further)
        found = _find_leftovers(clients, request, timeout_s=LEFTOVERS_TIMEOUT_S)
    kept = tuple(volume for one in found for volume in one.kept)
    return Receipt(
        cluster=request.name,
        deleted=tuple(each for each in deleted_by(*plans) if prepared.local_files or each.kind != LOCAL_FILES),
        leftovers=tuple(resource for one in found for resource in one.left),
        looked_for=tuple(each for one in found for each in one.looked_for),
        unseen=tuple(unseen for one in found for unseen in one.unseen),
        kept=kept,
        volume_usd_per_gib_month=find_volume_price(clients) if kept else None,
        lease_ended=prepared.lease_ended,
        images=tuple(image.name for image in describe_baked(clients.ec2) if image.cluster == request.name),
    )


def _describe(clients: Clients, request: Request, files: ClusterFiles) -> ClusterState:
    """Returns the cluster with all its resources. Raises AwsError."""
    finding = {}
    with bounded_pool() as pool:
        reading = pool.submit(describe_cluster, clients.ec2, name=request.name, known=files.known_instances())
        for kind in reversed(KINDS):
            if kind.find is not None:
                finding[kind] = pool.submit(kind.find, clients, request)
    state, found = reading.result(), {}
    for kind, one in finding.items():
        try:
            found[kind.kind] = one.result()
        except AwsError:
            if not kind.may_be_unseen:  # the receipt lists it
                raise
    return replace(state, found=found)


def _find_leftovers(clients: Clients, request: Request, *, timeout_s: float) -> list[Leftovers]:
    """Looks for resources of every kind until none are left, for at most timeout_s seconds. Raises AwsError.

    Looks again only for kinds of which something was left.
    """
    found: dict[str, Leftovers] = {}

    def check() -> bool | None:
        kinds = [kind for kind in reversed(KINDS) if kind.kind not in found or found[kind.kind].left]
        with bounded_pool() as pool:
            looking = [pool.submit(kind.find_left, clients, request) for kind in kinds]
        found.update((kind.kind, one.result()) for kind, one in zip(kinds, looking, strict=True))
        return None if any(each.left for each in found.values()) else True

    poll(check, timeout_s=timeout_s)
    return list(found.values())


# --- the receipt


class Receipt(Struct, frozen=True, kw_only=True):
    """The resources that `down` deleted, and those that it found afterwards.

    leftovers: resources that still carry the cluster's tag. looked_for: kinds, in the plural. unseen: resources that
    could not be read. bill: what the cluster has cost; None if unknown. kept: volumes that are not deleted. lease: see
    DownPlan. images: its baked images, which are not deleted.
    """

    cluster: str
    deleted: tuple[Resource, ...] = ()
    leftovers: tuple[Resource, ...] = ()
    looked_for: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    bill: ClusterBill | None = None
    kept: tuple[KeptVolume, ...] = ()
    volume_usd_per_gib_month: float | None = None
    lease_ended: str | None = None
    images: tuple[str, ...] = ()

    def find_cost(self, volume: KeptVolume) -> float | None:
        """The cost of a volume in US dollars per month; None if unknown."""
        price = self.volume_usd_per_gib_month
        return None if price is None else price * volume.size_gib


def add_receipts(one: Receipt, other: Receipt) -> Receipt:
    """Returns one receipt for a cluster that was deleted in two regions. Pure."""
    return replace(
        one,
        deleted=(*one.deleted, *other.deleted),
        leftovers=(*one.leftovers, *other.leftovers),
        looked_for=tuple(dict.fromkeys((*one.looked_for, *other.looked_for))),
        unseen=(*one.unseen, *other.unseen),
        kept=(*one.kept, *other.kept),
        images=(*one.images, *other.images),
        volume_usd_per_gib_month=one.volume_usd_per_gib_month or other.volume_usd_per_gib_month,
    )


def deleted_by(*plans: Plan) -> tuple[Resource, ...]:
    """The resources that the steps of the plans delete, without duplicates."""
    found = (
        Resource(kind=kind, resource_id=each)
        for plan in plans
        for step in plan.steps
        for kind, ids in step.deletions()
        for each in ids
    )
    return tuple(dict.fromkeys(found))


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """The receipt as `cluster down --json` prints it."""
    bill = receipt.bill
    return {
        "cluster": receipt.cluster,
        "gone": not receipt.leftovers,
        "deleted": [{"kind": each.kind, "id": each.resource_id} for each in receipt.deleted],
        "left": [
            {"kind": each.kind, "id": each.resource_id, "deletion": each.deletion or None} for each in receipt.leftovers
        ],
        "looked_for": list(receipt.looked_for),
        "unseen": [asdict(unseen) for unseen in receipt.unseen],
        "kept": [
            {
                "kind": SHARED_VOLUME.kind,
                "id": volume.volume_id,
                "zone": volume.zone,
                "size_gib": volume.size_gib,
                "usd_per_month": receipt.find_cost(volume),
                "deletion": volume.deletion,
            }
            for volume in receipt.kept
        ],
        "images": list(receipt.images),
        "lease_ended": receipt.lease_ended,
        "node_hours": None if bill is None else round(bill.ran_s / 3600, 4),
        "cost_usd": None if bill is None or bill.cost_usd is None else round(bill.cost_usd, 4),
    }


def render_receipt(receipt: Receipt, *, price_note: str = "") -> str:
    """Returns the receipt as text. price_note: a note to add to the cost, such as "simulated"."""
    if not receipt.deleted and not receipt.leftovers:
        lines = [f"cluster {receipt.cluster}: nothing to delete"]
    else:
        end = ": NOT everything is deleted" if receipt.leftovers else " is deleted"
        lines = [f"cluster {receipt.cluster}{end}"]
        lines.extend(_counted("deleted", receipt.deleted))
        lines.extend(_render_leftovers(receipt))
    for volume in receipt.kept:
        lines += _render_kept(volume, receipt.find_cost(volume), price_note)
    if receipt.images:
        lines += _entry("kept", f"images, which cost money until `cluster image rm`: {', '.join(receipt.images)}")
    for unseen in receipt.unseen:
        lines += _entry("unseen", f"{unseen.kind}: {unseen.why}")
    if receipt.lease_ended is not None:
        lines += _entry("lease", receipt.lease_ended)
    if receipt.bill is not None:
        lines += _entry("ran", _render_bill(receipt.bill, price_note))
    return "\n".join(lines) + "\n"


def _render_leftovers(receipt: Receipt) -> list[str]:
    if not receipt.leftovers:
        return _entry("left", f"nothing; looked for {', '.join(receipt.looked_for)}")
    lines = _counted("left", receipt.leftovers)
    commands = [resource.deletion for resource in receipt.leftovers if resource.deletion]
    if commands:
        lines += _entry("", "run `cluster down` again in a minute, or delete them yourself:")
    lines += [f"{'':{_INDENT}}{command}" for command in commands]
    return lines


def _render_kept(volume: KeptVolume, usd_per_month: float | None, price_note: str) -> list[str]:
    cost = "an unknown price" if usd_per_month is None else f"${usd_per_month:.2f}"
    note = f" ({price_note})" if price_note else ""
    words = (
        f"{SHARED_VOLUME.kind} {volume.volume_id}, {volume.size_gib} GiB in {volume.zone}: {cost} per month{note} "
        "until you delete it; the next `cluster up` uses it again. To delete it and what is on it:"
    )
    return [*_entry("kept", words), f"{'':{_INDENT}}{volume.deletion}"]


def _render_bill(bill: ClusterBill, price_note: str) -> str:
    if bill.cost_usd is None:
        cost = "the price is unknown"
    else:
        digits = 2 if bill.cost_usd >= 0.1 or bill.cost_usd == 0 else 4  # a small cost is not shown as $0.00
        cost = f"${bill.cost_usd:.{digits}f} ({'; '.join(filter(None, ['with disks, without traffic', price_note]))})"
    return f"{bill.ran_s / 3600:.2f} node hours, {cost}"


def _counted(title: str, resources: tuple[Resource, ...]) -> list[str]:
    """Returns one entry per kind, such as "2 x instance: i-1, i-2", with a limited number of ids."""
    lines = []
    for kind in dict.fromkeys(resource.kind for resource in resources):
        ids = [resource.resource_id for resource in resources if resource.kind == kind]
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        lines += _entry(title, f"{len(ids)} x {kind}: {', '.join(ids[:_SHOWN])}{more}")
    return lines or _entry(title, "nothing")


def _entry(title: str, words: str) -> list[str]:
    return [f"  {title:<{_INDENT - 3}} {words}"]
