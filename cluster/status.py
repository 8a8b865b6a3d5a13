"""The state of a cluster as text and as JSON. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provision.allocation import (
    Allocation,
    NodeError,
    Prices,
    add_up,
    count_ending,
    find_allocation,
    find_errors,
    reckon_cost,
)
from provision.model import ClusterState, Instance, Node, UntrustedInstance
from train.records import JobRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadJob:
    """What the head says of the job that runs; `why` says why it could not be asked.

    queued: how many jobs wait for it.
    """

    record: JobRecord | None = None
    queued: int = 0
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What `cluster status` shows. asked: nodes that cluster.toml wants; at_work: a process that changes the cluster.

    now: the moment at which times and costs are reckoned. job: None where there is no head to be asked.
    """

    state: ClusterState
    asked: int
    now: datetime
    prices: Prices
    at_work: int | None = None
    job: HeadJob | None = None

    @property
    def allocation(self) -> Allocation:
        """How the cluster stands."""
        return find_allocation(self.state, asked=self.asked, at_work=self.at_work)

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """Nodes that stopped or ended by themselves."""
        return find_errors(self.state)


def render_status(status: Status) -> str:
    """The nodes in a table, then what went wrong, the state, and the price."""
    lines = [render_nodes(status.state, now=status.now)]
    lines += render_untrusted(status.state.untrusted)
    lines += [_render_error(error) for error in status.errors]
    allocation = status.allocation
    lines.append(f"state  {allocation.state}" + (f": {allocation.why}" if allocation.why else ""))
    if status.job is not None:
        lines.append(f"job    {_render_job(status.job, now=status.now)}")
    if instances := (*status.state.nodes, *status.state.untrusted):  # all of them cost money
        costs = [reckon_cost(each, prices=status.prices, now=status.now) for each in instances]
        hourly = render_usd(add_up([cost.usd_per_hour for cost in costs]))
        so_far = render_usd(add_up([cost.usd_so_far for cost in costs]))
        ran_h = sum(cost.running_s for cost in costs) / 3600
        lines.append(f"price  {hourly} an hour now, {so_far} so far ({ran_h:.2f} node hours; without disks)")
    return "\n".join(lines)


def render_nodes(state: ClusterState, *, now: datetime | None = None) -> str:
    """A table of the nodes; one sentence when there are none."""
    if not state.nodes:
        ending = f"; {count_ending(state.ending)}" if state.ending else ""
        return f"cluster {state.name} has no nodes{ending}"
    moment = now or datetime.now(UTC)
    heading = ("NODE", "ROLE", "STATE", "TYPE", "MARKET", "ZONE", "PRIVATE", "PUBLIC", "AGE", "INSTANCE")
    return render_table([heading, *(_row(node, moment) for node in state.nodes)])


def render_untrusted(instances: Sequence[UntrustedInstance]) -> list[str]:
    """Lines about the instances with the cluster's tag that are not its nodes, and why; none without any."""
    if not instances:
        return []
    lines = ["", "not nodes, and nothing is sent to them (to adopt those that you know: cluster adopt):"]
    lines += [f"  {each.instance_id}  {each.state}  {each.instance_type}  {each.why}" for each in instances]
    return [*lines, ""]


def status_document(status: Status) -> dict[str, Any]:
    """What `cluster status --json` prints. `nodes` is what EC2 says; `cost` is reckoned from it at `cost.at`."""
    state, allocation = status.state, status.allocation
    named: dict[str, Instance] = {node.name: node for node in state.nodes}
    named |= {instance.instance_id: instance for instance in state.untrusted}
    costs = {name: reckon_cost(instance, prices=status.prices, now=status.now) for name, instance in named.items()}
    return {
        "name": state.name,
        "state": allocation.state,
        "why": allocation.why,
        "asked_nodes": status.asked,
        "node_counts": dict(Counter(node.state for node in state.nodes)),
        "nodes": [_node_document(node) for node in state.nodes],
        "untrusted": [untrusted_document(instance) for instance in state.untrusted],
        "errors": [
            {
                "instance_id": error.instance_id,
                "node": error.name,
                "code": error.code,
                "message": error.message,
                "spot_interruption": error.is_spot_interruption,
            }
            for error in status.errors
        ],
        "ending": list(state.ending),
        "process_at_work": status.at_work,
        "job": None if status.job is None else _job_document(status.job),
        "cost": {
            "at": status.now.isoformat(),
            "usd_per_hour": _rounded(add_up([cost.usd_per_hour for cost in costs.values()])),
            "usd_so_far": _rounded(add_up([cost.usd_so_far for cost in costs.values()])),
            "nodes": {
                name: {
                    "age_s": round(cost.age_s, 3),
                    "running_s": round(cost.running_s, 3),
                    "usd_per_hour": cost.usd_per_hour,
                    "usd_so_far": _rounded(cost.usd_so_far),
                }
                for name, cost in costs.items()
            },
        },
    }


def render_took(record: JobRecord, *, now: datetime) -> str:
    """For how long a job has run, or ran; "-" before it has started."""
    if record.started_at is None:
        return "-"
    return render_age((record.ended_at or now.timestamp()) - record.started_at)


def render_age(seconds: float) -> str:
    """A duration in the two largest units that it has: 42s, 5m10s, 3h07m, 2d04h."""
    whole = max(0, int(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    if minutes:
        return f"{minutes}m{s:02}s"
    return f"{s}s"


def render_usd(amount: float | None) -> str:
    """$1.20, $0.0042, or unknown."""
    if amount is None:
        return "unknown"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the heading first, in columns. Each stays one line, whatever stands in its cells."""
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _render_job(job: HeadJob, *, now: datetime) -> str:
    if job.why is not None:
        return f"unknown: {job.why}"
    queued = f", {job.queued} queued" if job.queued else ""
    if job.record is None:
        return f"none{queued}"
    warned = "".join(f"\n       warning: {text}" for text in job.record.warnings)
    took = f" for {render_took(job.record, now=now)}" if job.record.started_at is not None else ""
    stall = f"\n       {job.record.stall}" if job.record.stall else ""
    return (
        f"{job.record.id} ({job.record.name}) {job.record.state}{took}{queued}; "
        f"cluster logs -f {job.record.id} follows it{stall}{warned}"
    )


def _job_document(job: HeadJob) -> dict[str, Any]:
    record = job.record
    if record is None:
        return {"state": "none" if job.why is None else "unknown", "why": job.why, "queued": job.queued}
    return {
        "state": record.state,
        "why": None,
        "queued": job.queued,
        "id": record.id,
        "name": record.name,
        "workers": record.workers,
        "servers": record.servers,
        "started_at": record.started_at,
        "stall": record.stall,
    }


def _rounded(usd: float | None) -> float | None:
    """To the millionth: behind that is only the noise of floating point."""
    return None if usd is None else round(usd, 6)


def _render_error(error: NodeError) -> str:
    who = f"{error.name} ({error.instance_id})" if error.name else error.instance_id
    what = f"spot interruption, {error.message}" if error.is_spot_interruption else error.message
    return f"error  {who} {'stopped' if error.name else 'ended'}: {what}" + (f" ({error.code})" if error.code else "")


def _node_document(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "role": node.role,
        "state": node.state,
        "instance_id": node.instance_id,
        "instance_type": node.instance_type,
        "market": node.market,
        "zone": node.zone,
        "private_ip": node.private_ip,
        "public_ip": node.public_ip,
        "launched_at": node.launched_at.isoformat(),
        "started_at": node.started_at.isoformat() if node.started_at else None,
    }


def untrusted_document(instance: UntrustedInstance) -> dict[str, Any]:
    """An instance that is not trusted. why: in words; adoptable: whether `cluster adopt` would make it a node."""
    return {
        "instance_id": instance.instance_id,
        "why": instance.why,
        "adoptable": not instance.problems,
        "state": instance.state,
        "instance_type": instance.instance_type,
        "market": instance.market,
        "zone": instance.zone,
        "private_ip": instance.private_ip,
        "public_ip": instance.public_ip,
        "launched_at": instance.launched_at.isoformat(),
        "owner": instance.owner,
        "key_name": instance.key_name,
        "group_ids": list(instance.group_ids),
        "image_id": instance.image_id,
    }


def _row(node: Node, now: datetime) -> tuple[str, ...]:
    return (
        node.name,
        node.role,
        node.state,
        node.instance_type,
        node.market,
        node.zone,
        node.private_ip or "-",
        node.public_ip or "-",
        render_age((now - node.launched_at).total_seconds()),
        node.instance_id,
    )
