"""The [lease] table of cluster.toml: when the cluster ends by itself."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta

from foundation.durations import parse_duration
from foundation.setting_types import Settings, finite


def _check_duration(value: int | str) -> int | str:
    if not isinstance(value, str):
        # Elsewhere, a number is in seconds. Here, 12 would end a cluster while it still starts.
        raise ValueError('must be a time with a unit, such as "12h", "90m", "7d", or "none"')  # noqa: TRY004
    parse_duration(value)
    return value


class LeaseConfig(Settings, frozen=True, kw_only=True):
    """When all nodes end by themselves, independently of this machine. By default, nothing ends them."""

    lifetime: Annotated[
        str | int,
        _check_duration,
        Meta(description='how long the cluster may exist, from its launch or `cluster start` on: "12h", or "none"'),
    ] = "none"
    idle: Annotated[
        str | int,
        _check_duration,
        Meta(description='how long the cluster may be idle: without jobs, logins and load: "1h", or "none"'),
    ] = "none"
    budget_usd: Annotated[
        Literal["none"] | Annotated[float, Meta(gt=0, le=10_000_000), finite],
        Meta(description='what nodes, disks and addresses may cost, in US dollars: 200, or "none"'),
    ] = "none"
    then: Annotated[
        Literal["down", "stop"],
        Meta(
            description='"down": the nodes are terminated; "stop": they are stopped, and their disks still cost money'
        ),
    ] = "down"

    @property
    def lifetime_s(self) -> int | None:
        """The lifetime in seconds; None without a limit."""
        return parse_duration(self.lifetime)

    @property
    def idle_s(self) -> int | None:
        """The idle time in seconds; None without a limit."""
        return parse_duration(self.idle)

    @property
    def budget(self) -> float | None:
        """The budget in US dollars; None without a limit."""
        return None if self.budget_usd == "none" else self.budget_usd

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each invalid combination of valid settings."""
        if "then" in given and self.lifetime_s is self.idle_s is self.budget is None:
            yield "then has no effect without lifetime, idle or budget_usd"


NO_LEASE = LeaseConfig()


def find_conflicts(lease: LeaseConfig, *, market: tuple[str, ...], in_ec2: bool) -> Iterator[str]:
    """Yields the conflicts with other tables, as sentences that begin with the key. Pure. in_ec2: not cloud = "hosts".

    AWS does not stop one-time spot instances:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/stop-spot-instances.html
    """
    if not in_ec2:
        for key in ("lifetime", "idle", "budget_usd"):
            if (value := getattr(lease, key)) != "none":
                shown = f'"{value}"' if isinstance(value, str) else value
                yield f'[lease] {key} = {shown}: existing hosts (cloud = "hosts") are not ended'
    elif lease.then == "stop" and "spot" in market:
        yield '[lease] then = "stop": spot instances cannot be stopped; use "down", or [provision] market = "on-demand"'
