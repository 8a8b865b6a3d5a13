"""The bill that follows from the ledger: the cost of the cluster and of earlier clusters with its name. Pure.

How AWS bills, in US dollars:
- instances and public addresses by the second while the instance runs, at least a minute for each start
  (https://aws.amazon.com/ec2/pricing/, https://aws.amazon.com/vpc/pricing/);
- spot instances at the price of the time, here at the one when a command last saw them;
- nothing for a spot instance that EC2 reclaims within its first hour
  (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html);
- disks by the second from their launch to their deletion, stopped or not (https://aws.amazon.com/ebs/pricing/).
The bill does not include traffic, objects in S3, EFS and FSx.
"""

from msgspec import Struct

from provision.cost.ledger import MINIMUM_S, Ledger, LedgerNode, Period
from provision.lease.lease_plan import Spending
from provision.model import Market
from provision.preflight.prices import USD_PER_ADDRESS_HOUR, disk_cost, disk_rate
from provision.status import add_up

FREE_S = 3600.0


class NodeBill(Struct, frozen=True, kw_only=True):
    """The cost of a node; an unknown price makes a part None.

    state: running, stopped or ended, when last seen. launched_at, ended_at: seconds since 1970; ended_at is None while
    it exists. ran_s: how many seconds it ran. usd_per_hour: the current cost, with its disk and address. unseen_usd:
    what it may have cost in addition, because its end was not observed.
    """

    name: str
    instance_id: str
    region: str
    zone: str
    instance_type: str
    market: Market
    state: str
    launched_at: float
    ended_at: float | None
    ran_s: float
    instance_usd: float | None
    disk_usd: float | None
    address_usd: float | None
    usd_per_hour: float | None
    unseen_usd: float

    @property
    def cost_usd(self) -> float | None:
        """The total cost."""
        return add_up([self.instance_usd, self.disk_usd, self.address_usd])


class VolumeBill(Struct, frozen=True, kw_only=True):
    """The cost of the head's volume during the time of one cluster."""

    volume_id: str
    size_gib: int
    started_at: float
    ended_at: float | None
    cost_usd: float | None
    usd_per_hour: float | None


class ClusterBill(Struct, frozen=True, kw_only=True):
    """The cost of one cluster, from its first launch to its end. ended_at: None while any part of it exists."""

    launched_at: float
    ended_at: float | None
    nodes: tuple[NodeBill, ...]
    volumes: tuple[VolumeBill, ...]

    @property
    def cost_usd(self) -> float | None:
        """The total cost."""
        return add_up([*(node.cost_usd for node in self.nodes), *(volume.cost_usd for volume in self.volumes)])

    @property
    def usd_per_hour(self) -> float | None:
        """The current cost per hour."""
        nodes, volumes = self.nodes, self.volumes
        return add_up([*(node.usd_per_hour for node in nodes), *(volume.usd_per_hour for volume in volumes)])

    @property
    def ran_s(self) -> float:
        """How many seconds its nodes ran, all together."""
        return sum(node.ran_s for node in self.nodes)

    @property
    def unseen_usd(self) -> float:
        """The cost that it may have had in addition."""
        return sum(node.unseen_usd for node in self.nodes)

    def of_market(self, market: Market) -> float | None:
        """Returns the cost of the nodes of a market, with their disks and addresses."""
        return add_up([node.cost_usd for node in self.nodes if node.market == market])


def make_bills(ledger: Ledger, *, now: float) -> tuple[ClusterBill, ...]:
    """Returns the bills of all clusters of this name, in order of time."""
    bounds = sorted(ledger.downs)
    found = []
    for at in range(len(bounds) + 1):
        begin = bounds[at - 1] if at else 0.0
        end = bounds[at] if at < len(bounds) else float("inf")
        nodes = [node for node in ledger.nodes if begin < node.launched_at <= end]
        if not nodes:
            continue
        launched_at = min(node.launched_at for node in nodes)
        following = min((node.launched_at for node in ledger.nodes if node.launched_at > end), default=float("inf"))
        volumes = _bill_volumes(ledger, since=begin, begin=launched_at, following=following, now=now)
        is_over = end != float("inf") and all(volume.ended_at is not None for volume in volumes)
        found.append(
            ClusterBill(
                launched_at=launched_at,
                ended_at=end if is_over else None,
                nodes=tuple(_bill_node(node, ledger, now) for node in nodes),
                volumes=volumes,
            )
        )
    return tuple(found)


def find_spending(ledger: Ledger, *, now: float) -> Spending:
    """Returns the spending of the existing cluster."""
    bills = make_bills(ledger, now=now)
    if not bills or bills[-1].ended_at is not None:
        return Spending()
    current = bills[-1]
    ids = {node.instance_id for node in current.nodes if node.ended_at is None}
    rates = [_find_rate(node, ledger, runs=True) for node in ledger.nodes if node.instance_id in ids]
    usd_per_hour = add_up([*rates, *(volume.usd_per_hour for volume in current.volumes)])
    return Spending() if current.cost_usd is None else Spending(usd_per_hour=usd_per_hour, usd=current.cost_usd)


def _find_rate(node: LedgerNode, ledger: Ledger, *, runs: bool) -> float | None:
    """Returns what an existing node costs per hour."""
    running = [node.usd_per_hour, USD_PER_ADDRESS_HOUR if node.has_address else 0.0] if runs else []
    return add_up([*running, disk_rate(node.disk_gib, ledger.usd_per_gib_month)])


def _bill_node(node: LedgerNode, ledger: Ledger, now: float) -> NodeBill:
    ends = now if node.ended_at is None else node.ended_at
    seconds = sum(period.billed_until(now) - period.start for period in node.periods)
    disk_s = max(ends - node.launched_at, MINIMUM_S)
    runs, exists = node.runs, node.ended_at is None
    return NodeBill(
        name=node.name,
        instance_id=node.instance_id,
        region=node.region,
        zone=node.zone,
        instance_type=node.instance_type,
        market=node.market,
        state="running" if runs else "stopped" if exists else "ended",
        launched_at=node.launched_at,
        ended_at=node.ended_at,
        ran_s=sum((now if each.end is None else each.end) - each.start for each in node.periods),
        instance_usd=add_up([_bill_period(period, node, now) for period in node.periods]),
        disk_usd=disk_cost(node.disk_gib, ledger.usd_per_gib_month, disk_s),
        address_usd=seconds * USD_PER_ADDRESS_HOUR / 3600 if node.has_address else 0.0,
        usd_per_hour=_find_rate(node, ledger, runs=runs) if exists else 0.0,
        unseen_usd=_unseen(node, ledger),
    )


def _bill_period(period: Period, node: LedgerNode, now: float) -> float | None:
    seconds = period.billed_until(now) - period.start
    if period.reclaimed and seconds < FREE_S:
        return 0.0
    return None if node.usd_per_hour is None else node.usd_per_hour * seconds / 3600


def _unseen(node: LedgerNode, ledger: Ledger) -> float:
    address = USD_PER_ADDRESS_HOUR if node.has_address else 0.0
    running = sum(period.unseen_s for period in node.periods) * ((node.usd_per_hour or 0.0) + address) / 3600
    return running + (disk_cost(node.disk_gib, ledger.usd_per_gib_month, node.unseen_s) or 0.0)


def _bill_volumes(
    ledger: Ledger, *, since: float, begin: float, following: float, now: float
) -> tuple[VolumeBill, ...]:
    """Returns the bills of the head's volumes, up to the first launch of the next cluster, which then owns them.

    since: the end of the previous cluster; begin: the first launch, from which older volumes belong to this cluster.
    """
    price = ledger.usd_per_gib_month
    found = []
    for volume in ledger.volumes:
        gone_at = volume.gone_at
        start = volume.made_at if volume.made_at > since else begin
        end = min(now if gone_at is None else gone_at, following)
        if volume.made_at >= following or (gone_at is not None and gone_at <= begin):
            continue
        is_here = gone_at is None and following == float("inf")
        found.append(
            VolumeBill(
                volume_id=volume.volume_id,
                size_gib=volume.size_gib,
                started_at=start,
                ended_at=None if is_here else end,
                cost_usd=disk_cost(volume.size_gib, price, max(end - start, 0.0)),
                usd_per_hour=disk_rate(volume.size_gib, price) if is_here else 0.0,
            )
        )
    return tuple(found)
