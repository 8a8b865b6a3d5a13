"""What a cluster has of what cluster.toml asks for, what went wrong with it, and what it costs. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from provision.config import ProvisionConfig, all_types
from provision.model import ClusterState, Instance, Node, format_indices
from provision.pause import STOPPED_BY_CALL, running_s
from provision.preflight.prices import Prices

AllocationState = Literal["none", "resizing", "starting", "stopping", "stopped", "degraded", "not-set-up", "ready"]

_LAUNCH_S = 60.0
_SPOT = frozenset({"Server.SpotInstanceShutdown", "Server.SpotInstanceTermination"})
"""StateReason's codes (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html)."""
_REASON = re.compile(r"((?:Client|Server)\.[A-Za-z.]+)(?:: *(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """`why` says more, where there is more to say."""

    state: AllocationState
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeError:
    """A node that stopped or ended by itself. name: None when it is gone. code: EC2's, None when it gave none."""

    instance_id: str
    name: str | None
    code: str | None
    message: str

    @property
    def is_spot_interruption(self) -> bool:
        """Whether AWS wanted its spot capacity back."""
        return self.code in _SPOT


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCost:
    """Times in seconds; prices in USD, None when they cannot be had.

    usd_per_hour: what it costs now: 0 when it does not run, its disks aside. usd_so_far: at today's price.
    """

    age_s: float
    running_s: float
    usd_per_hour: float | None
    usd_so_far: float | None


def find_allocation(
    state: ClusterState, *, asked: int, at_work: int | None = None, set_up: Collection[str] | None = None
) -> Allocation:
    """How the cluster stands.

    asked: nodes that cluster.toml wants. at_work: the process that changes the cluster now. set_up: ids of the
    instances that can train; None: all of them, as far as is known.
    The first that holds:
    stopping   nodes are stopping by call
    starting   nodes that ran before are pending
    resizing   other nodes are pending, nodes are ending by call, or a command is at work
    none       there are no nodes, and none ended by itself
    stopped    all nodes are stopped by call
    degraded   nodes stopped or ended by themselves, some are stopped, or there are fewer than asked for
    not-set-up all run, and some cannot train yet
    ready      all run and can train
    """
    failed = {error.instance_id for error in find_errors(state)}
    moving = _find_movement(state, failed)
    if moving is not None:
        return moving
    if at_work is not None:
        return Allocation(state="resizing", why=f"a command is at work (process {at_work})")
    if not state.nodes and not failed:
        return Allocation(state="none")
    stopped = [node for node in state.nodes if node.state != "running"]
    if state.nodes and len(stopped) == len(state.nodes) and not failed & {node.instance_id for node in stopped}:
        return Allocation(state="stopped", why="cluster start starts it")
    by_state = {word: [node for node in stopped if node.state == word] for word in ("stopping", "stopped")}
    reasons = [_nodes(nodes, word) for word, nodes in by_state.items() if nodes]
    if len(state.nodes) < asked:
        reasons.append(f"{len(state.nodes)} of the {asked} nodes that cluster.toml asks for")
    bare = [node.name for node in state.nodes if set_up is not None and node.instance_id not in set_up]
    if reasons or not bare:
        return Allocation(state="degraded", why="; ".join(reasons)) if reasons else Allocation(state="ready")
    return Allocation(state="not-set-up", why=f"{', '.join(bare)}; cluster up completes the set-up")


def find_errors(state: ClusterState) -> tuple[NodeError, ...]:
    """The nodes that stopped or ended although nobody told them to, as far as EC2 still knows.

    What ended stays in EC2's lists for about an hour; of a cluster that is gone it is no error.
    """
    asleep = [node for node in state.nodes if node.state in {"stopping", "stopped"}]
    found = [_error(node.instance_id, node.name, node.state_reason) for node in asleep]
    if state.exists:
        found += [_error(instance_id, None, why) for instance_id, why in sorted(state.ended.items())]
    return tuple(error for error in found if error is not None)


def reckon_cost(node: Instance, *, prices: Prices, now: datetime) -> NodeCost:
    """What a node has cost and costs, its disks aside."""
    price = prices.get((node.market, node.instance_type, node.zone))
    ran_s = running_s(node, now=now)
    runs = node.state in {"pending", "running"}
    return NodeCost(
        age_s=max((now - node.launched_at).total_seconds(), 0.0),
        running_s=ran_s,
        usd_per_hour=price if runs else 0.0,
        usd_so_far=None if price is None else price * ran_s / 3600,
    )


def add_up(amounts: Sequence[float | None]) -> float | None:
    """Their sum; None when one of them is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def find_differences(config: ProvisionConfig, nodes: Sequence[Node]) -> Iterator[str]:
    """What somebody should know who is about to use the nodes as they are; without nodes there is nothing to use."""
    enough = config.nodes if config.min_nodes == "all" else min(config.min_nodes, config.nodes)
    if 0 < len(nodes) < enough:
        yield f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster up adds the others)"
    elif len(nodes) > config.nodes:
        yield (
            f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster resize {config.nodes} ends "
            "the others)"
        )
    others = Counter(node.instance_type for node in nodes if node.instance_type not in all_types(config))
    if others:
        listed = ", ".join(f"{count} {instance_type}" for instance_type, count in sorted(others.items()))
        yield (
            f'[provision] instance_type = "{config.instance_type}", and the cluster has {listed} (cluster down and '
            "cluster up make it anew)"
        )
    elsewhere = sorted({node.subnet_id for node in nodes if node.subnet_id is not None} - {config.subnet_id})
    if config.subnet_id != "auto" and elsewhere:
        yield (
            f'[provision] subnet_id = "{config.subnet_id}", and the cluster has nodes in {", ".join(elsewhere)} '
            "(cluster down and cluster up make it anew)"
        )


def count_ending(ids: Collection[str]) -> str:
    """How many instances are shutting down, in words."""
    return f"{f'{len(ids)} instances are' if len(ids) > 1 else '1 instance is'} shutting down"


def _find_movement(state: ClusterState, failed: set[str]) -> Allocation | None:
    """What is under way by somebody's call; failed: ids of what stops or ends by itself."""
    if stopping := [node for node in state.nodes if node.state == "stopping" and node.instance_id not in failed]:
        return Allocation(state="stopping", why=_nodes(stopping, "stopping"))
    pending = [node for node in state.nodes if node.state == "pending"]
    if started := [node for node in pending if _has_run_before(node)]:
        return Allocation(state="starting", why=_nodes(started, "pending"))
    if pending:
        return Allocation(state="resizing", why=_nodes(pending, "pending"))
    if ending := set(state.ending) - failed:
        return Allocation(state="resizing", why=count_ending(ending))
    return None


def _has_run_before(node: Node) -> bool:
    """By the tag that `stop` writes, or by EC2's times, where a launch itself may span some seconds."""
    since_launch_s = 0.0 if node.started_at is None else (node.started_at - node.launched_at).total_seconds()
    return node.ran is not None or since_launch_s > _LAUNCH_S


def _error(instance_id: str, name: str | None, reason: str | None) -> NodeError | None:
    """None when it was told to, or when EC2 gives no reason (its state stands there then)."""
    if reason is None or reason in {"shutting-down", "terminated"} or reason.startswith(STOPPED_BY_CALL):
        return None
    found = _REASON.fullmatch(reason)
    if found is None:
        return NodeError(instance_id=instance_id, name=name, code=None, message=reason)
    return NodeError(instance_id=instance_id, name=name, code=found[1], message=found[2] or found[1])


def _nodes(nodes: list[Node], state: str) -> str:
    one = len(nodes) == 1
    return f"node{'' if one else 's'} {format_indices(n.index for n in nodes)} {'is' if one else 'are'} {state}"
