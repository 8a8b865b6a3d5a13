"""The end of a cluster, proven: what was deleted, what a fresh look still found, how long it ran at what cost. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from textwrap import wrap
from typing import Any

from provision.model import Instance, Upload
from provision.plan import Plan
from provision.preflight.prices import PricedPlace
from provision.resources.instances import TerminateInstances, WaitForTerminated
from provision.resources.power import running_s
from provision.resources.resource import Resource, Unseen
from provision.resources.unfinished_uploads import IDLE_S

Prices = Mapping[PricedPlace, float | None]
"""USD per hour of one node; None where it cannot be had."""

_SHOWN = 8
_WIDTH = 110
_INDENT = 11
LOCAL_FILES = "local files"
"""Kind of what ForgetFiles removes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """How long nodes ran, and what that cost.

    node_hours: of all nodes together. usd: of these hours alone, not of disks and traffic; None when a price is not
    known. on_spot: part of it is at the present spot price, where the price of each hour would be right.
    uncounted: instances that are not in it, since they ended or were ending before, as far as EC2 still shows them.
    """

    node_hours: float = 0.0
    usd: float | None = 0.0
    on_spot: bool = False
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What `down` did, and what a fresh look found afterwards.

    leftovers: what carries the cluster's tag after all; empty when everything went well. looked_for: kinds of things.
    unseen: what could not be looked at. in_progress: uploads that somebody may be at, and that were left alone.
    """

    cluster: str
    deleted: tuple[Resource, ...] = ()
    leftovers: tuple[Resource, ...] = ()
    looked_for: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    in_progress: tuple[Upload, ...] = ()
    bill: Bill = Bill()


def make_bill(plans: Sequence[Plan], *, prices: Prices, now: datetime, ended: Iterable[str] = ()) -> Bill:
    """The bill of the nodes that plans terminate `now`. One node without a price makes the cost unknown.

    ended: ids of instances that were gone or going before, by `resize` or by a `down` that was interrupted: EC2 does
    not say for how long they ran, so that they are not in it, and the bill has to say so.
    """
    steps = [step for plan in plans for step in plan.steps]
    nodes = terminated_by(*plans)
    waited = {i for step in steps if isinstance(step, WaitForTerminated) for i in step.instance_ids}
    hours = [running_s(node, now=now) / 3600 for node in nodes]
    rates = [prices.get((node.market, node.instance_type, node.zone)) for node in nodes]
    costs = [hour * rate for hour, rate in zip(hours, rates, strict=True) if rate is not None]
    return Bill(
        node_hours=sum(hours),
        usd=sum(costs) if len(costs) == len(nodes) else None,
        on_spot=any(node.market == "spot" for node in nodes),
        uncounted=tuple(sorted((waited | set(ended)) - {node.instance_id for node in nodes})),
    )


def terminated_by(*plans: Plan) -> list[Instance]:
    """The instances that plans terminate."""
    steps = [step for plan in plans for step in plan.steps]
    return [node for step in steps if isinstance(step, TerminateInstances) for node in (*step.nodes, *step.untrusted)]


def deleted_by(*plans: Plan) -> tuple[Resource, ...]:
    """What the steps of plans delete, each once."""
    found = (
        Resource(kind=kind, resource_id=each)
        for plan in plans
        for step in plan.steps
        for kind, ids in step.deletions()
        for each in ids
    )
    return tuple(dict.fromkeys(found))


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """The receipt for programs: what `cluster down --json` prints."""
    return {
        "cluster": receipt.cluster,
        "gone": not receipt.leftovers,
        "deleted": [{"kind": each.kind, "id": each.resource_id} for each in receipt.deleted],
        "left": [
            {"kind": each.kind, "id": each.resource_id, "deletion": each.deletion or None} for each in receipt.leftovers
        ],
        "looked_for": list(receipt.looked_for),
        "unseen": [asdict(unseen) for unseen in receipt.unseen],
        "uploads_in_progress": [
            {"url": upload.url, "upload_id": upload.upload_id, "idle_s": round(upload.idle_s)}
            for upload in receipt.in_progress
        ],
        "node_hours": round(receipt.bill.node_hours, 4),
        "cost_usd": None if receipt.bill.usd is None else round(receipt.bill.usd, 4),
        "cost_is_at_present_spot_price": receipt.bill.on_spot,
        "uncounted_instances": list(receipt.bill.uncounted),
    }


def render_receipt(receipt: Receipt) -> str:
    """The receipt as text."""
    if not receipt.deleted and not receipt.leftovers:
        lines = [f"cluster {receipt.cluster}: nothing is there"]
    else:
        end = "NOT all is gone" if receipt.leftovers else "is gone"
        lines = [f"cluster {receipt.cluster}{':' if receipt.leftovers else ''} {end}"]
        lines.extend(_counted("deleted", receipt.deleted))
        lines.extend(_render_leftovers(receipt))
    if receipt.in_progress:
        folders = ", ".join(sorted({f"s3://{upload.bucket}/" for upload in receipt.in_progress}))
        lines += _entry(
            "spared",
            f"{len(receipt.in_progress)} x upload to {folders}, younger than {IDLE_S / 60:.0f} minutes: a data put may "
            "be at work; `cluster down` aborts them later",
        )
    for unseen in receipt.unseen:
        lines += _entry("unseen", f"{unseen.kind}: {unseen.why}")
    if receipt.deleted:
        lines += _entry("ran", _render_bill(receipt.bill))
    return "\n".join(lines) + "\n"


def _render_leftovers(receipt: Receipt) -> list[str]:
    if not receipt.leftovers:
        return _entry("left", f"nothing; looked for {', '.join(receipt.looked_for)}")
    lines = _counted("left", receipt.leftovers)
    commands = [resource.deletion for resource in receipt.leftovers if resource.deletion]
    if commands:
        lines += _entry("", "if `cluster down` does not delete them in a minute, this does:")
    lines += [f"{'':{_INDENT}}{command}" for command in commands]
    return lines


def _render_bill(bill: Bill) -> str:
    if bill.usd is None:
        cost = "the price is unknown"
    else:
        about, how = ("about ", ", spot at its present price") if bill.on_spot else ("", "")
        digits = 2 if bill.usd >= 0.1 or bill.usd == 0 else 4  # what is not nothing is not shown as $0.00
        cost = f"{about}${bill.usd:.{digits}f}{how} (disks and traffic not counted)"
    words = f"{bill.node_hours:.2f} node hours, {cost}"
    if bill.uncounted:
        words += f"; not counted: {len(bill.uncounted)} x instance that had ended, or was ending, before"
    return words


def _counted(title: str, resources: tuple[Resource, ...]) -> list[str]:
    """One entry per kind: 2 x instance: i-1, i-2 (never more ids than fit on a screen)."""
    lines = []
    for kind in dict.fromkeys(resource.kind for resource in resources):
        ids = [resource.resource_id for resource in resources if resource.kind == kind]
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        lines += _entry(title, f"{len(ids)} x {kind}: {', '.join(ids[:_SHOWN])}{more}")
    return lines or _entry(title, "nothing")


def _entry(title: str, words: str) -> list[str]:
    first, *further = wrap(words, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False)
    return [f"  {title:<{_INDENT - 3}} {first}", *(f"{'':{_INDENT}}{line}" for line in further)]
