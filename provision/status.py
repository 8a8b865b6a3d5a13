"""A cluster's state compared with cluster.toml, and failed nodes. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from foundation.durations import render_duration, render_time
from provision.config import ProvisionConfig, all_types
from provision.lease.terms import render_number
from provision.model import ClusterState, Instance, Node, format_indices
from provision.power import STOPPED_BY_CALL

AllocationState = Literal[
    "none", "ended", "not-adopted", "resizing", "starting", "stopping", "stopped", "degraded", "not-set-up", "ready"
]

_LAUNCH_S = 60.0
_SPOT = frozenset({"Server.SpotInstanceShutdown", "Server.SpotInstanceTermination"})
"""The codes of StateReason (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html)."""
SWITCHED_OFF = "Client.InstanceInitiatedShutdown"
"""The code of an instance that shut itself down, as the lease does."""
_REASON = re.compile(r"((?:Client|Server)\.[A-Za-z.]+)(?:: *(.*))?", re.DOTALL)


class Allocation(Struct, frozen=True, kw_only=True):
    """The state of a cluster. `why`: an explanation, if one helps."""

    state: AllocationState
    why: str | None = None


class NodeError(Struct, frozen=True, kw_only=True):
    """A node that stopped or ended without a call. name: None for an ended one. code: EC2's, if any."""

    instance_id: str
    name: str | None
    code: str | None
    message: str

    @property
    def is_spot_interruption(self) -> bool:
        """Whether AWS reclaimed its spot capacity."""
        return self.code in _SPOT


def find_allocation(
    state: ClusterState,
    *,
    wanted: int,
    at_work: int | None = None,
    set_up: Collection[str] | None = None,
    lease_end: str | None = None,
) -> Allocation:
    """Returns the state of the cluster.

    wanted: `nodes` of cluster.toml. at_work: the process that is changing the cluster. set_up: ids of the instances
    that can train; None: all of them, as far as is known. lease_end: see find_lease_end.

    The first state that applies:
    stopping   nodes are stopping by call
    starting   nodes that ran before are pending
    resizing   other nodes are pending, nodes are ending by call, or a command is changing the cluster
    not-adopted  no nodes, but instances with the cluster's tag run, which this machine did not launch
    ended      the lease has terminated the nodes
    none       no nodes, and none failed
    stopped    all nodes are stopped by call
    degraded   nodes failed, some are stopped, or there are fewer than cluster.toml asks for
    not-set-up all run, and some cannot train yet
    ready      all run and can train
    """
    failed = {error.instance_id for error in find_errors(state) if not (lease_end and error.code == SWITCHED_OFF)}
    moving = _find_movement(state, failed | set(state.ending) if lease_end else failed)
    if moving is not None:
        return moving
    if at_work is not None:
        return Allocation(state="resizing", why=f"a command is changing the cluster (process {at_work})")
    absent = None if state.nodes else _find_absence(state, failed, lease_end)
    if absent is not None:
        return absent
    stopped = [node for node in state.nodes if node.state != "running"]
    if state.nodes and len(stopped) == len(state.nodes) and not failed & {node.instance_id for node in stopped}:
        ended = "" if lease_end is None else f"{lease_end}; "
        return Allocation(state="stopped", why=f"{ended}cluster start starts it")
    by_state = {word: [node for node in stopped if node.state == word] for word in ("stopping", "stopped")}
    reasons = [_nodes(nodes, word) for word, nodes in by_state.items() if nodes]
    if len(state.nodes) < wanted:
        reasons.append(f"{len(state.nodes)} of the {wanted} nodes that cluster.toml asks for")
    bare = [node.name for node in state.nodes if set_up is not None and node.instance_id not in set_up]
    if reasons or not bare:
        return Allocation(state="degraded", why="; ".join(reasons)) if reasons else Allocation(state="ready")
    return Allocation(state="not-set-up", why=f"{', '.join(bare)}; cluster up completes the set-up")


def find_errors(state: ClusterState) -> tuple[NodeError, ...]:
    """Returns the nodes that stopped or ended without a call, as far as EC2 still lists them.

    EC2 lists ended instances for about an hour. Those of a deleted cluster and replaced ones are not errors.
    """
    asleep = [node for node in state.nodes if node.state in {"stopping", "stopped"}]
    found = [_error(node.instance_id, node.name, node.state_reason) for node in asleep]
    if state.exists:
        ended = [(one, why) for one, why in sorted(state.ended.items()) if one not in state.outlived]
        found += [_error(instance_id, None, why) for instance_id, why in ended]
    return tuple(error for error in found if error is not None)


def find_lease_end(state: ClusterState, *, now: float) -> str | None:
    """Returns how the lease has ended the cluster, in words; None if it has not. Pure.

    EC2 does not report why an instance shut itself down. It was the lease if all instances did so: a user who shuts
    down a single node leaves the others running. EC2 no longer lists terminated instances after an hour. After that,
    the lease is on the group, unless a command has ended the nodes. The nodes may also run without being known to this
    machine.
    """
    lease = state.lease
    if lease is None or not lease.limits or _find_running((*state.nodes, *state.untrusted)):
        return None
    reasons = [*(node.state_reason for node in state.nodes), *state.ended.values()]
    off = [reason is not None and reason.startswith(SWITCHED_OFF) for reason in reasons]
    if lease.until is not None and lease.until <= now and (all(off) or any(off)):
        return f"its lifetime ended at {render_time(lease.until)}"
    if off and all(off):
        limits = [
            *((f"idle = {render_duration(lease.idle_s)}",) if lease.idle_s is not None else ()),
            *((f"budget_usd = {render_number(lease.budget_usd)}",) if lease.budget_usd is not None else ()),
        ]
        return f"its lease ended it ({' or '.join(limits)})" if limits else None
    if not reasons:
        at = "" if lease.until is None or lease.until > now else f" at {render_time(lease.until)}"
        return f"its lease ended{at}"
    return None


def _find_running(instances: Sequence[Instance]) -> list[Instance]:
    """Returns the instances that run, or start."""
    return [each for each in instances if each.state in {"pending", "running"}]


def add_up(amounts: Sequence[float | None]) -> float | None:
    """Returns the sum of the amounts; None if one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def find_differences(config: ProvisionConfig, nodes: Sequence[Node]) -> Iterator[str]:
    """Yields how the nodes differ from cluster.toml: warnings for commands that use them. Empty without nodes."""
    enough = config.nodes if config.min_nodes == "all" else min(config.min_nodes, config.nodes)
    if 0 < len(nodes) < enough:
        yield f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster up adds the others)"
    elif len(nodes) > config.nodes:
        yield (
            f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster resize {config.nodes} "
            "terminates the others)"
        )
    others = Counter(node.instance_type for node in nodes if node.instance_type not in all_types(config))
    if others:
        listed = ", ".join(f"{count} {instance_type}" for instance_type, count in sorted(others.items()))
        yield (
            f'[provision] instance_type = "{config.instance_type}", and the cluster has {listed} (cluster down, then '
            "cluster up, replaces it)"
        )


def count_ending(ids: Collection[str]) -> str:
    """Returns how many instances are shutting down, in words."""
    return f"{f'{len(ids)} instances are' if len(ids) > 1 else '1 instance is'} shutting down"


def _find_movement(state: ClusterState, uncalled: set[str]) -> Allocation | None:
    """Returns a change that a call has started. uncalled: ids of nodes that stop or end without one."""
    if stopping := [node for node in state.nodes if node.state == "stopping" and node.instance_id not in uncalled]:
        return Allocation(state="stopping", why=_nodes(stopping, "stopping"))
    pending = [node for node in state.nodes if node.state == "pending"]
    if started := [node for node in pending if _has_run_before(node)]:
        return Allocation(state="starting", why=_nodes(started, "pending"))
    if pending:
        return Allocation(state="resizing", why=_nodes(pending, "pending"))
    if ending := set(state.ending) - uncalled:
        return Allocation(state="resizing", why=count_ending(ending))
    return None


def _find_absence(state: ClusterState, failed: set[str], lease_end: str | None) -> Allocation | None:
    """Returns the state of a cluster without nodes; None if some failed. failed: ids of nodes that did."""
    if _find_running(state.untrusted):
        why = "cluster adopt makes those that you know nodes of this machine, cluster down ends all"
        return Allocation(state="not-adopted", why=why)
    if lease_end is not None:
        return Allocation(state="ended", why=f"{lease_end}; cluster down removes what is left")
    return None if failed else Allocation(state="none")


def _has_run_before(node: Node) -> bool:
    """Decides by EC2's times. A launch itself may take some seconds."""
    return node.started_at is not None and (node.started_at - node.launched_at).total_seconds() > _LAUNCH_S


def _error(instance_id: str, name: str | None, reason: str | None) -> NodeError | None:
    """Returns None for a node that stopped by a call, or that has no reason (EC2's state then takes its place)."""
    if reason is None or reason in {"shutting-down", "terminated"} or reason.startswith(STOPPED_BY_CALL):
        return None
    found = _REASON.fullmatch(reason)
    if found is None:
        return NodeError(instance_id=instance_id, name=name, code=None, message=reason)
    return NodeError(instance_id=instance_id, name=name, code=found[1], message=found[2] or found[1])


def _nodes(nodes: list[Node], state: str) -> str:
    one = len(nodes) == 1
    return f"node{'' if one else 's'} {format_indices(n.index for n in nodes)} {'is' if one else 'are'} {state}"
