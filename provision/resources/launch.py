"""Launches the missing nodes in the first place with capacity: zone after zone, type after type, market after market.

All nodes are launched in one place. Tries every place for all nodes first. If none has capacity, and fewer nodes are
enough, tries each place for fewer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from msgspec import Struct, structs

from foundation.errors import NoCapacityError, QuotaError, StalePlanError
from foundation.progress import Event
from provision.aws.clients import error_code, translate_refusal
from provision.aws.error_hints import RETRY_CODES
from provision.describe import describe_now
from provision.files import TOKEN_LIFETIME_S
from provision.lease.arm import SetLease, tag_lease
from provision.lease.lease_plan import Spending, begin_lease, update_budget
from provision.lease.terms import LAST_MOMENT, Lease, parse_lease, render_lease
from provision.model import LaunchOption, Preflight, count, format_indices
from provision.plan import Context, Step, World
from provision.preflight.prices import USD_PER_ADDRESS_HOUR, disk_rate
from provision.resources.instance_profile import find_profile_name
from provision.resources.launch_recovery import forget_seen_launches, wait_for_interrupted_launches
from provision.resources.placement_group import PLACEMENT_GROUP, find_placement_name
from provision.resources.resource import retry_while
from provision.resources.run_instances import NodeSpec, call_run_instances, request_digest, run_instances_request
from provision.resources.security_group import find_group
from provision.resources.shared_volume import find_disks_gib

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import RunInstancesRequestTypeDef

NO_CAPACITY_CODES = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientInstanceCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "Unsupported",
    }
)
"""Codes that mean "not this type in this zone and market": other places may have capacity
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html)."""

QUOTA_CODES = frozenset({"InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})
MORE_CHOICES = (
    "wait, or allow more choices: [provision] instance_types, market, regions, another subnet_id, min_nodes, "
    "capacity_wait_s"
)
_GROUP_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidID"})
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchNodes(Step):
    """Launch the missing nodes in one call: all of them or, if AWS lacks capacity, at least `least`.

    current: the lease of existing nodes, which new ones share, or of those that have ended.
    """

    world: World
    preflight: Preflight
    current: Lease | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the nodes."""
        return self.world.missing

    @property
    def least(self) -> int:
        """How many of them are enough; 0 if none of them is required."""
        return self.world.least_missing

    @property
    def is_first(self) -> bool:
        """Whether the cluster has no other nodes: the launch begins its lease."""
        return not self.world.state.nodes

    @property
    def group_id(self) -> str | None:
        """The security group; None for the one that this plan creates."""
        group = find_group(self.world)
        return group.group_id if group else None

    @property
    def nodes(self) -> NodeSpec:
        """What the nodes have in common."""
        world, request, config = self.world, self.world.request, self.world.request.config
        return NodeSpec(
            indices=self.indices,
            key_name=world.resource_name,
            volume_size_gib=config.volume_size_gib,
            public_address=config.ssh_address == "public",
            placement_group=find_placement_name(world),
            instance_profile=find_profile_name(config, name=request.name),
            user=config.user if request.from_head else "",
            authorized=request.from_head or "",
            tags=config.tags,
        )

    @property
    def usd_per_hour(self) -> float | None:
        """What the cluster will cost per hour in the first place that is tried; None if a price is unknown."""
        return self.find_rate(self.preflight.options[0])

    @property
    def addresses_usd_per_hour(self) -> float:
        """What the public addresses of all nodes cost per hour."""
        config = self.world.request.config
        return config.nodes * USD_PER_ADDRESS_HOUR if config.ssh_address == "public" else 0.0

    def find_lease(self, option: LaunchOption, *, now: float) -> Lease | None:
        """Returns the lease of new nodes: that of the others, or a new one. Raises the errors of begin_lease."""
        if not self.is_first:
            return self.current
        spending = Spending(self.find_rate(option), self.world.spent_usd)
        return begin_lease(self.world.request.lease, self.current, now=now, spending=spending)

    def find_rate(self, option: LaunchOption) -> float | None:
        """Returns what the cluster will cost per hour, with disks and addresses; None if a price is unknown."""
        disks_usd = disk_rate(find_disks_gib(self.world), self.preflight.volume_usd_per_gib_month)
        if option.usd_per_hour is None or disks_usd is None:
            return None
        return self.world.request.config.nodes * option.usd_per_hour + self.addresses_usd_per_hour + disks_usd

    def describe(self) -> str:
        return f"launch {count(len(self.indices), 'node')} ({format_indices(self.indices)})"

    def apply(self, context: Context) -> bool:
        """Launches the nodes in one call, in the first place with capacity. Returns False if nothing was launched.

        In that case, either the nodes exist (EC2's lists may lag behind the plan), or there is no capacity and none of
        them is required. Raises StalePlanError when some of them exist, NoCapacityError when there is no capacity.
        """
        tries = _plan_tries(self, context)
        wait_for_interrupted_launches(
            context.clients.ec2,
            name=context.cluster,
            files=context.files,
            report=context.report,
            except_digests=frozenset(attempt.digest for attempt in tries),
        )
        forget_seen_launches(context.clients.ec2, name=context.cluster, files=context.files)
        live = describe_now(context).nodes
        present = {node.index for node in live} & set(self.indices)
        if present == set(self.indices):
            return False
        if present:
            raise StalePlanError(
                f"nodes {format_indices(present)} appeared after the launch of nodes "
                f"{format_indices(self.indices)} was planned",
                hint="run the command again",
            )
        refused = _search(self, tries, context)
        if refused is None:
            return True
        if self.least > 0:
            raise NoCapacityError(
                f"no capacity for {_wanted(self)} in any place that was tried, and nothing was launched:\n"
                + "\n".join(f"  {line}" for line in refused),
                hint=MORE_CHOICES,
            )
        context.without.update(self.indices)
        what = f"no capacity for nodes {format_indices(self.indices)}: continuing without them"
        context.report(Event(kind="warn", what=what))
        return False


def plan_launch(world: World) -> tuple[Step, ...]:
    """Plans the launch of the missing nodes, if any, in one call. Pure.

    More nodes spend a budget sooner. The others get the earlier end first: a launch may be interrupted, or the set-up
    may fail. The head, which may not set tags, replaces nodes that cost as much.
    """
    if world.preflight is None or not world.missing:
        return ()
    launch = LaunchNodes(world=world, preflight=world.preflight, current=world.state.lease)
    for option in world.preflight.options:
        launch.find_lease(option, now=0.0)  # raises for a budget that is spent, or with an unknown price
    lease = launch.current
    if launch.is_first or lease is None or world.request.from_head:
        return (launch,)
    sooner = update_budget(lease, Spending(launch.usd_per_hour, world.spent_usd), now=time.time())
    if (sooner.budget_until or LAST_MOMENT) >= (lease.budget_until or LAST_MOMENT):
        return (launch,)
    return SetLease(lease=sooner, nodes=world.state.nodes, group_id=launch.group_id), replace(launch, current=sooner)


def rehearsed_launch(world: World) -> RunInstancesRequestTypeDef:
    """Returns the request for a dry run of the launch, without resources that do not exist yet. Pure.

    EC2 would reject such resources instead of checking permissions.
    """
    preflight, group, key = world.preflight, world.state.security_group, world.state.key_pair
    if preflight is None:
        raise ValueError("no node is missing")
    option, placement = preflight.options[0], PLACEMENT_GROUP.found_in(world.state)
    usable = group is not None and group.vpc_id == option.vpc_id and key is not None and key.ours
    profile = world.request.config.instance_profile
    nodes = structs.replace(
        LaunchNodes(world=world, preflight=preflight).nodes,
        placement_group=placement.group_name if placement is not None and placement.ours else None,
        instance_profile=None if profile in {"none", "auto"} else profile,
    )
    return run_instances_request(
        nodes,
        option,
        least=len(nodes.indices),
        name=world.request.name,
        owner=world.caller.owner,
        group_id=group.group_id if group is not None and usable else None,
    )


class Try(Struct, frozen=True, kw_only=True):
    """One RunInstances call: a place, how many nodes are enough, and the digest of its request without the lease.

    The deadline depends on the time of the call: it is in the journal, with the call's token.
    """

    option: LaunchOption
    least: int
    digest: str


def _wanted(step: LaunchNodes) -> str:
    fewer = f" (nor for {step.least})" if step.least < len(step.indices) else ""
    return f"{count(len(step.indices), 'node')}{fewer}"


def _plan_tries(step: LaunchNodes, context: Context) -> tuple[Try, ...]:
    """Returns the calls to try, in order. A call that an interrupted run began comes first: it may have succeeded."""
    every = len(step.indices)
    fewer = max(step.least, 1)
    tries: list[Try] = []
    for least in (every, fewer) if fewer < every else (every,):
        for option in step.preflight.options:
            request = _build_request(step, option, least=least, context=context, lease=None)
            tries.append(Try(option=option, least=least, digest=request_digest(request)))
    now = time.time()
    begun = {launch.digest for launch in context.files.launches() if now - launch.started_at < TOKEN_LIFETIME_S}
    return tuple(sorted(tries, key=lambda attempt: attempt.digest not in begun))


def _build_request(
    step: LaunchNodes, option: LaunchOption, *, least: int, context: Context, lease: Lease | None
) -> RunInstancesRequestTypeDef:
    return run_instances_request(
        step.nodes,
        option,
        least=least,
        name=context.cluster,
        owner=context.owner,
        group_id=context.group_id(step.group_id),
        lease=lease,
    )


def _search(step: LaunchNodes, tries: tuple[Try, ...], context: Context) -> list[str] | None:
    """Tries until nodes are launched, and returns None; otherwise returns a line for each place without capacity.

    Raises QuotaError when the account's quotas forbid all tries.
    """
    started = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    while True:
        refused: list[str] = []
        over_quota: list[QuotaError] = []
        for attempt in tries:
            try:
                words = _try(step, attempt, context)
            except QuotaError as error:
                over_quota.append(error)
                words = error.message.removeprefix("AWS says: ")
            if words is None:
                return None
            refused.append(f"{_name(step, attempt)}: {words}")
            context.report(Event(kind="info", what=f"no capacity for {refused[-1]}"))
        if len(over_quota) == len(tries) and step.least > 0:
            raise over_quota[0]
        left_s = step.world.request.config.capacity_wait_s - (time.monotonic() - started)
        if left_s <= 0:
            return refused
        pause_s = min(pause_s, left_s)
        context.report(Event(kind="info", what=f"no capacity anywhere: retrying in {pause_s:.0f} s"))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _try(step: LaunchNodes, attempt: Try, context: Context) -> str | None:
    """Tries one place. Returns None if nodes were launched, otherwise the reason in AWS's words."""
    files = context.files
    # An interrupted run, or a call whose response was lost, may have launched nodes that EC2 does not list yet.
    unclear = any(launch.digest == attempt.digest for launch in files.launches())

    def note_repeat(event: Event) -> None:
        nonlocal unclear
        unclear = True
        context.report(event)

    now = time.time()
    lease = step.find_lease(attempt.option, now=now)
    launch = files.begin_launch(
        attempt.digest, indices=step.indices, now=now, lease="" if lease is None else render_lease(lease)
    )
    lease = parse_lease(launch.lease)
    request = _build_request(step, attempt.option, least=attempt.least, context=context, lease=lease)
    try:
        launched = call_run_instances(context.clients.run_ec2, request, client_token=launch.token, report=note_repeat)[
            "Instances"
        ]
    except ClientError as error:
        code = error_code(error)
        # With these codes, nothing was launched under this token; other errors may come after a launch.
        if code in NO_CAPACITY_CODES | QUOTA_CODES or not (unclear or code in RETRY_CODES):
            files.forget_launch(attempt.digest)
        if code in QUOTA_CODES:
            refused = translate_refusal(error, "launching nodes")
            raise QuotaError(refused.message, hint=refused.hint) from error
        if code not in NO_CAPACITY_CODES:
            raise
        # Without AWS's advice to try other zones, which this program does itself.
        reason = str(error.response["Error"].get("Message", "no reason given")).partition(". ")[0]
        return f"{reason.rstrip('.')} ({code})"
    context.launched.update(instance["InstanceId"] for instance in launched)
    files.note_launched(attempt.digest, (instance["InstanceId"] for instance in launched))
    context.option = attempt.option
    if lease is not None and step.is_first:
        # Tag the group, too: it remains when the lease has ended the nodes.
        group = [context.group_id(step.group_id)]
        retry_while(_GROUP_NOT_YET_KNOWN, lambda: tag_lease(context.clients.ec2, group, lease))
    missing = step.indices[len(launched) :]  # EC2's launch index starts from 0: the first indices exist
    context.without.update(missing)
    if missing:
        got = f"{len(launched)} of {len(step.indices)} nodes"
        what = f"AWS has capacity for {got}: continuing without nodes {format_indices(missing)}"
        context.report(Event(kind="warn", what=what))
    if len(step.preflight.options) > 1:
        context.report(Event(kind="info", what=f"{len(launched)} x {attempt.option.label}"))
    return None


def _name(step: LaunchNodes, attempt: Try) -> str:
    every = len(step.indices)
    return f"{attempt.least}{'' if attempt.least == every else f' to {every}'} x {attempt.option.label}"
