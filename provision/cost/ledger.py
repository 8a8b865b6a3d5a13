"""The ledger of a cluster: which instances and volumes it had, and from when to when.

EC2 does not keep this: a start replaces LaunchTime, an ended instance disappears after about an hour, a volume at once.
So each command that changes or shows the cluster records here what EC2 lists. Pure. Times are in seconds since 1970, in
EC2's clock.

    EC2 shows an instance as     its last period                its disk
    pending, running             is open                        exists
    stopping, stopped            ended when EC2 says            exists
    shutting-down, terminated    ended when EC2 says            ended at the same time
    not at all                   ended after it was last seen   ended at the same time

If EC2 does not report the time, the period ends when the instance was last seen running, and `unseen_s` is how much
longer it may have run.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from provision.model import InstanceState, Market

MINIMUM_S = 60.0
"""AWS bills instances, addresses and disks for at least a minute."""
_SAME_S = 1.0
"""The largest difference between two times of EC2 for the same start: EC2 reports whole seconds."""
_LAUNCH_S = 60.0
"""A start later than this after the launch is not part of the launch."""


class Period(Struct, frozen=True, kw_only=True):
    """A time in which an instance ran. end: None while it runs.

    unseen_s: how much longer it may have run. reclaimed: EC2 ended a spot instance.
    """

    start: float
    end: float | None = None
    unseen_s: float = 0.0
    reclaimed: bool = False

    def billed_until(self, now: float) -> float:
        """Returns the time until which it is billed: each start costs at least a minute."""
        return max(now if self.end is None else self.end, self.start + MINIMUM_S)


class Launched(Struct, frozen=True, kw_only=True):
    """What the launch of an instance decides. disk_gib: None if unknown. has_address: a public one while it runs.

    is_block: it is in a Capacity Block, which is paid in advance.
    """

    instance_id: str
    name: str
    instance_type: str
    market: Market
    zone: str
    launched_at: float
    disk_gib: int | None = None
    has_address: bool = False
    is_block: bool = False


class LedgerNode(Launched, frozen=True, kw_only=True):
    """An instance. periods: in order of time. ended_at: when it was terminated and its disk was deleted.

    usd_per_hour: on spot, the price when last seen.
    """

    region: str
    periods: tuple[Period, ...] = ()
    ended_at: float | None = None
    unseen_s: float = 0.0
    usd_per_hour: float | None = None

    @property
    def runs(self) -> bool:
        """Whether it was running when last seen."""
        return any(period.end is None for period in self.periods)


class LedgerVolume(Struct, frozen=True, kw_only=True):
    """A volume of [[volumes]] source = "head", which is not an instance's own. gone_at: when it was deleted."""

    volume_id: str
    region: str
    size_gib: int
    made_at: float
    gone_at: float | None = None


class Ledger(Struct, frozen=True, kw_only=True):
    """The record of all clusters of one name. downs: when each was deleted; the next launch begins another.

    seen: when EC2 was last asked, by region. Prices are in US dollars, None if unknown.
    """

    nodes: tuple[LedgerNode, ...] = ()
    volumes: tuple[LedgerVolume, ...] = ()
    downs: tuple[float, ...] = ()
    seen: Mapping[str, float] = field(default_factory=dict)
    usd_per_gib_month: float | None = None


class SeenNode(Launched, frozen=True, kw_only=True):
    """An instance as EC2 reports it. started_at: its LaunchTime; ended_at: when it stopped or ended, if known."""

    state: InstanceState
    started_at: float
    ended_at: float | None = None
    reclaimed: bool = False


class Observation(Struct, frozen=True, kw_only=True):
    """A cluster in one region, as EC2 reports it. exists: something of it remains, if only a security group.

    volumes: those of the cluster that are not an instance's own.
    """

    at: float
    region: str
    exists: bool
    nodes: tuple[SeenNode, ...] = ()
    volumes: tuple[LedgerVolume, ...] = ()


def note(ledger: Ledger, now: Observation) -> Ledger:
    """Returns the ledger with the current observation added."""
    seen_at = ledger.seen.get(now.region, 0.0)
    known = {node.instance_id: node for node in ledger.nodes}
    shown = {node.instance_id: _note_node(known.get(node.instance_id), node, seen_at, now) for node in now.nodes}
    lost = {
        node.instance_id: _lose(node, seen_at, now.at)
        for node in ledger.nodes
        if node.instance_id not in shown and node.region == now.region
    }
    listed = {volume.volume_id: volume for volume in now.volumes}
    gone = {
        volume.volume_id: replace(volume, gone_at=seen_at)
        for volume in ledger.volumes
        if volume.volume_id not in listed and volume.region == now.region and volume.gone_at is None
    }
    noted = replace(
        ledger,
        nodes=tuple(sorted({**known, **lost, **shown}.values(), key=_age_order)),
        volumes=tuple({**{volume.volume_id: volume for volume in ledger.volumes}, **gone, **listed}.values()),
        seen={**ledger.seen, now.region: max(seen_at, now.at)},
    )
    return noted if now.exists else _note_down(noted)


def _age_order(node: LedgerNode) -> tuple[float, str, str]:
    return node.launched_at, node.name, node.instance_id


def _note_node(known: LedgerNode | None, shown: SeenNode, seen_at: float, now: Observation) -> LedgerNode:
    launched = {name: getattr(shown, name) for name in Launched.__struct_fields__}
    node = known or LedgerNode(**launched, region=now.region, periods=tuple(_read_earlier(shown)))
    seen_at = seen_at if known is not None else 0.0
    earlier = tuple(_end_earlier(each, shown, seen_at) for each in node.periods if not _is_same(each, shown))
    current = _note_period(next((each for each in node.periods if _is_same(each, shown)), None), shown, seen_at, now.at)
    ended_at, unseen_s = node.ended_at, node.unseen_s
    if shown.state not in {"shutting-down", "terminated"}:
        ended_at, unseen_s = None, 0.0
    elif shown.ended_at is not None:
        ended_at, unseen_s = shown.ended_at, 0.0
    elif ended_at is None:
        ended_at = max(seen_at, current.end or shown.started_at)
        unseen_s = max(now.at - ended_at, 0.0)
    return replace(
        node,
        periods=tuple(sorted((*earlier, current), key=lambda period: period.start)),
        ended_at=ended_at,
        unseen_s=unseen_s,
        disk_gib=node.disk_gib if shown.disk_gib is None else shown.disk_gib,
        has_address=node.has_address or shown.has_address,
    )


def _is_same(period: Period, shown: SeenNode) -> bool:
    """Returns whether a period is the node's last one."""
    return abs(period.start - shown.started_at) <= _SAME_S


def _read_earlier(shown: SeenNode) -> Iterator[Period]:
    """Yields the period before the last one of a node that is not in the ledger: it counts as running all the time."""
    if shown.started_at - shown.launched_at > _LAUNCH_S:
        yield Period(start=shown.launched_at, end=shown.started_at)


def _end_earlier(period: Period, shown: SeenNode, seen_at: float) -> Period:
    """Ends a period before the node's last one, when the node was last seen in it."""
    if period.end is not None:
        return period
    end = max(seen_at, period.start)
    return replace(period, end=end, unseen_s=max(shown.started_at - end, 0.0))


def _note_period(known: Period | None, shown: SeenNode, seen_at: float, now: float) -> Period:
    """Returns the node's last period."""
    if shown.state in {"pending", "running"}:
        return Period(start=known.start if known is not None else shown.started_at)
    if known is not None and known.end is not None and not known.unseen_s:
        return known
    period = replace(known or Period(start=shown.started_at), reclaimed=shown.reclaimed)
    if shown.ended_at is not None:
        return replace(period, end=max(shown.ended_at, period.start), unseen_s=0.0)
    if known is not None and known.end is not None:
        return known
    end = max(period.start, seen_at)
    return replace(period, end=end, unseen_s=max(now - end, 0.0))


def _lose(node: LedgerNode, seen_at: float, now: float) -> LedgerNode:
    """Returns a node that EC2 no longer lists, with its end."""
    if node.ended_at is not None:
        return node
    unseen_s = max(now - seen_at, 0.0)
    periods = tuple(
        replace(period, end=max(seen_at, period.start), unseen_s=unseen_s) if period.end is None else period
        for period in node.periods
    )
    return replace(node, periods=periods, ended_at=seen_at, unseen_s=unseen_s)


def _note_down(ledger: Ledger) -> Ledger:
    """Records a deletion when one region has nothing of the cluster left, unless nodes in other regions still exist."""
    ends = [node.ended_at for node in ledger.nodes if node.ended_at is not None]
    newest = max((node.launched_at for node in ledger.nodes), default=0.0)
    if not ends or len(ends) < len(ledger.nodes) or any(down >= newest for down in ledger.downs):
        return ledger
    return replace(ledger, downs=(*ledger.downs, max(ends)))


def set_prices(ledger: Ledger, *, per_hour: Mapping[str, float | None], usd_per_gib_month: float | None) -> Ledger:
    """Returns the ledger with prices. Unknown ones do not replace known ones. per_hour: by instance id."""

    def price(node: LedgerNode) -> LedgerNode:
        found = per_hour.get(node.instance_id)
        return replace(node, usd_per_hour=node.usd_per_hour if found is None else found)

    return replace(
        ledger,
        nodes=tuple(map(price, ledger.nodes)),
        usd_per_gib_month=ledger.usd_per_gib_month if usd_per_gib_month is None else usd_per_gib_month,
    )
