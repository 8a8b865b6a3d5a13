"""A cluster and its running job, as text and as JSON. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from cluster.lease import NodeLease
from cluster.views.document import as_document, pick
from cluster.views.layout import render_table
from cluster.views.results import render_files
from foundation.decode import shorten
from foundation.durations import render_age
from node.protocol import Unhealthy
from provision.cost.bill import ClusterBill
from provision.lease.lease_plan import describe_lease
from provision.lease.terms import Lease
from provision.model import ClusterState, Instance, Node, UntrustedInstance, count
from provision.resources.shared_volume import SharedVolume
from provision.status import (
    SWITCHED_OFF,
    Allocation,
    NodeError,
    count_ending,
    find_allocation,
    find_errors,
    find_lease_end,
)
from train.follow.records import JobRecord

STATE_WORDS = {"not-adopted": "running, but not set up from this machine"}  # other states are shown as they are
INSTANCE_FIELDS = "instance_id state instance_type market zone private_ip public_ip launched_at"


class HeadJob(Struct, frozen=True, kw_only=True):
    """The running job, as the head reports it. why: the reason why the head could not be asked.

    queued: how many jobs wait. others: how many more run, on nodes of a batch scheduler. last: the newest job that has
    ended. with_files: those with new files on the nodes, the newest first. set_up: whether the head can run jobs at
    all. beside: whether jobs run that take no turn, notebooks. unhealthy: the nodes that were unhealthy at their last
    check, by name.
    """

    record: JobRecord | None = None
    last: JobRecord | None = None
    queued: int = 0
    others: int = 0
    with_files: tuple[JobRecord, ...] = ()
    set_up: bool = True
    beside: bool = False
    why: str | None = None
    unhealthy: Mapping[str, Unhealthy] = field(default_factory=dict)

    def render_others(self) -> str:
        """Renders the other jobs that run, for after the running one; "" for none."""
        return f", and {count(self.others, 'other job')}" if self.others else ""

    def find_unhealthy(self, ids: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Returns why nodes are unhealthy, without healthy ones and those that were replaced. ids: by their names."""
        found = {name: one for name, one in self.unhealthy.items() if one.id == ids.get(name)}
        return {name: tuple(map(shorten, one.reasons)) for name, one in found.items()}


class Status(Struct, frozen=True, kw_only=True):
    """The content of `cluster status`. wanted: the number of nodes in cluster.toml.

    bill: the cost of the cluster; None if unknown, or if it has never had an instance. at_work: the id of a process
    that is changing the cluster. set_up: see find_allocation. now: the time for which ages and costs are computed. job:
    None if there is no head to ask. price_note: a note to add to prices, such as "simulated". volumes: those of
    [[volumes]] source = "head". lost_head: the message about a head that has ended; None if it has not. lost_jobs: the
    ids of its jobs that continue.
    """

    state: ClusterState
    wanted: int
    now: datetime
    bill: ClusterBill | None = None
    at_work: int | None = None
    set_up: Collection[str] | None = None
    job: HeadJob | None = None
    price_note: str = ""
    volumes: tuple[SharedVolume, ...] = ()
    volume_usd_per_gib_month: float | None = None
    lost_head: str | None = None
    lost_jobs: tuple[str, ...] = ()

    @property
    def allocation(self) -> Allocation:
        """The state of the whole cluster."""
        return find_allocation(
            self.state, wanted=self.wanted, at_work=self.at_work, set_up=self.set_up, lease_end=self.lease_end
        )

    @property
    def lease_end(self) -> str | None:
        """How the lease has ended the cluster; None if it has not."""
        return find_lease_end(self.state, now=self.now.timestamp())

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """The nodes that stopped or ended, but neither by one of our commands nor by their lease."""
        errors = find_errors(self.state)
        return tuple(error for error in errors if error.code != SWITCHED_OFF) if self.lease_end else errors

    @property
    def unhealthy(self) -> Mapping[str, tuple[str, ...]]:
        """The reasons why nodes are unhealthy, by name."""
        return (self.job or HeadJob()).find_unhealthy({node.name: node.instance_id for node in self.state.nodes})


def render_status(status: Status, *, columns: int | None = None) -> str:
    """Renders the nodes in a table, then errors, the state, the lease, the job, volumes and the price.

    columns: see render_nodes.
    """
    lines = [render_nodes(status.state, now=status.now, columns=columns, unhealthy=status.unhealthy)]
    lines += render_untrusted(status.state.untrusted)
    lines += [_render_error(error) for error in status.errors]
    lines += render_unhealthy(status.unhealthy)
    if status.lost_head is not None:
        lines.append(f"error  {status.lost_head}")
    allocation = status.allocation
    word = STATE_WORDS.get(allocation.state, allocation.state.replace("-", " "))
    lines.append(f"state  {word}" + (f": {allocation.why}" if allocation.why else ""))
    if status.state.nodes:
        lines.append(f"lease  {render_lease(status.state, status.state.lease, now=status.now.timestamp())}")
    lines += render_job_lines(status.job, now=status.now)
    lines += [f"volume {_render_volume(volume, status)}" for volume in status.volumes]
    if (bill := status.bill) is not None:
        notes = [*filter(None, [status.price_note]), f"{bill.ran_s / 3600:.2f} node hours"]
        hourly, so_far = render_usd(bill.usd_per_hour), render_usd(bill.cost_usd)
        lines.append(f"price  {hourly} per hour now, {so_far} so far ({'; '.join(notes)})")
    elif status.state.instances:
        lines.append("price  unknown")
    return "\n".join(lines)


def render_unhealthy(unhealthy: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line for each unhealthy node, with the reasons."""
    return [f"error  {name} is unhealthy: {'; '.join(reasons)}" for name, reasons in unhealthy.items()]


def render_nodes(
    state: ClusterState,
    *,
    now: datetime | None = None,
    columns: int | None = None,
    unhealthy: Collection[str] = (),
) -> str:
    """Renders a table of the nodes; one sentence when there are none. columns: the width that it fits into.

    unhealthy: the names of unhealthy nodes. They are marked if they are running.
    """
    if not state.nodes:
        ending = f"; {count_ending(state.ending)}" if state.ending else ""
        return f"cluster {state.name} has no nodes{ending}"
    moment = now or datetime.now(UTC)
    heading = ("NODE", "ROLE", "STATE", "TYPE", "MARKET", "ZONE", "PRIVATE", "PUBLIC", "AGE", "INSTANCE")
    rows = [heading, *(_row(node, moment, is_unhealthy=node.name in unhealthy) for node in state.nodes)]
    return render_table(rows, columns=columns, drop=("ZONE", "MARKET", "PRIVATE", "AGE", "ROLE", "TYPE"))


def _render_volume(volume: SharedVolume, status: Status) -> str:
    """Renders the head's volume and its cost."""
    price, where = status.volume_usd_per_gib_month, volume.zone
    cost = None if price is None else volume.size_gib * price
    if volume.instance_id is not None:
        names = {node.instance_id: node.name for node in status.state.nodes}
        where = f"{volume.attachment or 'attached'} to {names.get(volume.instance_id, volume.instance_id)}"
    note = f" ({status.price_note})" if status.price_note else ""
    ending = "keeps" if volume.keep else "deletes"
    words = f"{volume.volume_id}, {volume.size_gib} GiB, {where}: {render_usd(cost)} per month{note}"
    return f"{words}; cluster down {ending} it"


def render_untrusted(instances: Sequence[UntrustedInstance]) -> list[str]:
    """Returns lines about instances with the cluster's tag that are not its nodes, with the reasons; empty if none."""
    if not instances:
        return []
    lines = ["", "not nodes; nothing is sent to them (cluster adopt accepts those that you know):"]
    lines += [f"  {each.instance_id}  {each.state}  {each.instance_type}  {each.why}" for each in instances]
    return [*lines, ""]


def lease_document(lease: Lease | None, *, now: float) -> dict[str, Any] | None:
    """Returns a lease, for --json; None without a lease. remaining_s: the time until the deadline."""
    if lease is None or not lease.limits:
        return None
    return as_document(
        {
            **pick(lease, "set_at until idle_s budget_usd budget_until then"),
            "remaining_s": None if lease.until is None else round(max(lease.until - now, 0.0), 1),
        }
    )


def render_lease(state: ClusterState, lease: Lease | None, *, now: float) -> str:
    """Describes when the cluster ends, without a subject. While all nodes are stopped, no lease applies."""
    if state.nodes and all(node.state in {"stopping", "stopped"} for node in state.nodes):
        return "none while the nodes are stopped: cluster start begins that of cluster.toml"
    return describe_lease(lease, now=now)


def render_lease_table(leases: Sequence[NodeLease]) -> str:
    """Renders how long the cluster has been idle according to each node, and why it is not; "" without nodes."""
    if not leases:
        return ""
    rows = [
        (one.node, "-" if one.idle_s is None else render_age(one.idle_s), one.error or one.busy or "-")
        for one in leases
    ]
    return render_table([("NODE", "IDLE", "IN USE BECAUSE"), *rows])


def status_document(status: Status) -> dict[str, Any]:
    """Returns the output of `cluster status --json`. `nodes` is from EC2; `cost` is computed from it for `cost.at`."""
    state, allocation = status.state, status.allocation
    named: dict[str, Instance] = {node.name: node for node in state.nodes}
    named |= {instance.instance_id: instance for instance in state.untrusted}
    bill = status.bill
    bills = {} if bill is None else {node.instance_id: node for node in bill.nodes}
    nothing = None if named else 0.0
    price = status.volume_usd_per_gib_month
    return as_document(
        {
            "name": state.name,
            "state": allocation.state,
            "why": allocation.why,
            "asked_nodes": status.wanted,
            "lease": lease_document(state.lease, now=status.now.timestamp()),
            "lease_ended": status.lease_end,
            "lost_head": None if status.lost_head is None else {"why": status.lost_head, "jobs": status.lost_jobs},
            "node_counts": Counter(node.state for node in state.nodes),
            "nodes": [
                {
                    **pick(node, f"name role started_at {INSTANCE_FIELDS}"),
                    "unhealthy": status.unhealthy.get(node.name, ()),
                }
                for node in state.nodes
            ],
            "untrusted": [untrusted_document(instance) for instance in state.untrusted],
            "errors": [
                {
                    **pick(error, "instance_id code message"),
                    "node": error.name,
                    "spot_interruption": error.is_spot_interruption,
                }
                for error in status.errors
            ],
            "volumes": [
                {
                    **pick(volume, "volume_id zone size_gib state instance_id keep"),
                    "usd_per_month": None if price is None else price * volume.size_gib,
                }
                for volume in status.volumes
            ],
            "ending": tuple(state.ending),
            "process_at_work": status.at_work,
            "job": None if status.job is None else job_document(status.job),
            "cost": {
                "at": status.now,
                "simulated": bool(status.price_note),
                "usd_per_hour": nothing if bill is None else bill.usd_per_hour,
                "cost_usd": nothing if bill is None else bill.cost_usd,
                "nodes": {
                    name: {
                        "usd_per_hour": None if node is None else node.usd_per_hour,
                        "cost_usd": None if node is None else node.cost_usd,
                        "age_s": round(max((status.now - instance.launched_at).total_seconds(), 0.0), 3),
                        "ran_s": round(0.0 if node is None else node.ran_s, 3),
                    }
                    for name, instance in named.items()
                    for node in [bills.get(instance.instance_id)]
                },
            },
        }
    )


def render_took(record: JobRecord, *, now: datetime) -> str:
    """Returns how long a job has run, or ran; "-" before it has started."""
    if record.started_at is None:
        return "-"
    return render_age(round((record.ended_at or now.timestamp()) - record.started_at))


def render_usd(amount: float | None) -> str:
    """Renders an amount: "$1.20", "$0.0042", "<$0.0001" or "unknown"."""
    if amount is None:
        return "unknown"
    if 0 < amount < 0.00005:
        return "<$0.0001"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"


def render_job_lines(job: HeadJob | None, *, now: datetime) -> list[str]:
    """Returns lines about the running job, and how to get its files or the last job's; empty if no head answers."""
    if job is None:
        return []
    lines = [f"job    {_render_job(job, now=now)}"]
    shown = job.record or job.last
    if shown is not None and (files := render_files(shown)):
        lines.append(f"files  {files}")
    return lines


def _render_job(job: HeadJob, *, now: datetime) -> str:
    if job.why is not None:
        return f"unknown: {job.why}"
    queued = f", {job.queued} queued" if job.queued else ""
    if job.record is None:
        last = "" if job.last is None else f"; the last one, {job.last.id} ({job.last.name}), is {job.last.state}"
        return f"none{queued}{last}"
    warned = "".join(f"\n       warning: {text}" for text in job.record.warnings)
    took = f" for {render_took(job.record, now=now)}" if job.record.started_at is not None else ""
    if job.record.waiting_for:
        replaces = "the head" if job.record.head_replaces else "cluster up"
        took = f" for {', '.join(job.record.waiting_for)}, which {replaces} replaces"
    stall = f"\n       {job.record.stall.text}" if job.record.stall else ""
    return (
        f"{job.record.id} ({job.record.name}) {job.record.state}{took}{job.render_others()}{queued}; "
        f"cluster logs -f {job.record.id} follows it{stall}{warned}"
    )


def job_document(job: HeadJob) -> dict[str, Any]:
    """Returns the running job, for --json."""
    record = job.record
    if record is None:
        return {"state": "none" if job.why is None else "unknown", "why": job.why, "queued": job.queued}
    return as_document(
        {
            **pick(record, "id name state waiting_for started_at"),
            **pick(record.spec, "workers servers"),
            "stall": record.stall,
            "attempt": len(record.attempts),
            "why": None,
            "queued": job.queued,
        }
    )


def _render_error(error: NodeError) -> str:
    who = f"{error.name} ({error.instance_id})" if error.name else error.instance_id
    what = f"spot interruption, {error.message}" if error.is_spot_interruption else error.message
    return f"error  {who} {'stopped' if error.name else 'ended'}: {what}" + (f" ({error.code})" if error.code else "")


def untrusted_document(instance: UntrustedInstance) -> dict[str, Any]:
    """Returns an instance that is not trusted, for --json.

    why: the reason as text. adoptable: whether `cluster adopt` would accept it as a node.
    """
    names = f"{INSTANCE_FIELDS} why owner key_name group_ids image_id"
    return as_document({**pick(instance, names), "adoptable": not instance.problems})


def _row(node: Node, now: datetime, *, is_unhealthy: bool) -> tuple[str, ...]:
    return (
        node.name,
        node.role,
        "unhealthy" if is_unhealthy and node.state == "running" else node.state,
        node.instance_type,
        node.market,
        node.zone,
        node.private_ip or "-",
        node.public_ip or "-",
        render_age((now - node.launched_at).total_seconds()),
        node.instance_id,
    )
