"""What AWS would bill for a sandbox's instances, computed from the sandbox's own log of states.

Spot instances count with the average of the sandbox's prices, which are 30 to 50 % of those on demand.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ec2_sandbox.api.prices import GP3_GIB_MONTH, ON_DEMAND

PUBLIC_ADDRESS = 0.005  # US dollars per hour; https://aws.amazon.com/vpc/pricing/
RECLAIMED = "Server.SpotInstanceTermination"


@dataclass
class LoggedInstance:
    """An instance of the log. ran: (from, to, EC2's reason for the end); times in seconds since 1970."""

    type: str
    market: str
    zone: str
    begun: float
    gib: int = 0
    ran: list[tuple[float, float, str | None]] = field(default_factory=list)
    address: bool = False
    runs_since: float | None = None
    gone: float | None = None


def read_states(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_instances(entries: Iterable[dict[str, Any]], *, now: float) -> dict[str, LoggedInstance]:
    found: dict[str, LoggedInstance] = {}
    for entry in entries:
        at = datetime.fromisoformat(entry["time"]).timestamp()
        one = found.setdefault(
            entry["instance"],
            LoggedInstance(type=entry["type"], market=entry["market"], zone=entry["zone"], begun=at),
        )
        one.gib = max(one.gib, sum(entry["disks_gib"]))
        if entry["state"] == "running":
            one.runs_since, one.address = at, one.address or entry["public_address"]
        elif entry["state"] in ("stopping", "shutting-down") and one.runs_since is not None:
            one.ran.append((one.runs_since, at, entry["reason"]))
            one.runs_since = None
        if entry["state"] == "terminated":
            one.gone = at
    for one in found.values():
        if one.runs_since is not None:
            one.ran.append((one.runs_since, now, None))
    return found


def bill(entries: Iterable[dict[str, Any]], *, now: float) -> dict[str, float]:
    """The billed US dollars, by "on-demand", "spot", "disk" and "address"."""
    usd: dict[str, float] = defaultdict(float)
    for one in read_instances(entries, now=now).values():
        for start, end, reason in one.ran:
            seconds = max(end - start, 60)
            if one.address:
                usd["address"] += seconds / 3600 * PUBLIC_ADDRESS
            if one.market == "on-demand":
                usd["on-demand"] += seconds / 3600 * ON_DEMAND[one.type]
            elif reason != RECLAIMED or seconds >= 3600:
                usd["spot"] += seconds / 3600 * 0.4 * ON_DEMAND[one.type]
        usd["disk"] += one.gib * GP3_GIB_MONTH * max((one.gone or now) - one.begun, 60) / 3600 / 730
    return dict(usd)
