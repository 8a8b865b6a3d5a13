"""How long a node has run, over all its stops and starts. Pure.

EC2 says since when an instance runs (LaunchTime), and that moves when it is started again: what was before is lost. So
`stop` writes it into the instance's tag cluster:ran, before it stops the instance: "before,start,stop", where `before`
is for how many seconds the node ran before the period that ends, and `start` and `stop` are the period's ends in
seconds since 1970.

    the tag's start is     the node is    it has run for
    no tag, or damaged     any            since it was launched, at most
    this period's          stopped        before + (stop - start)
    this period's          running        before + (now - start): the stop was interrupted
    an earlier period's    running        before + (stop - start) + (now - this period's start)
    an earlier period's    stopped        the same, at most: something else stopped it
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from provision.model import Instance

_RAN = re.compile(r"([0-9]{1,12}),([0-9]{1,12}),([0-9]{1,12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """The tag's content. before_s: seconds; start and stop: seconds since 1970, stop not before start."""

    before_s: int
    start: int
    stop: int


def running_s(node: Instance, *, now: datetime) -> float:
    """For how many seconds it has run: never less than 0, nor more than since its launch."""
    launched, moment = node.launched_at.timestamp(), now.timestamp()
    longest = max(moment - launched, 0.0)
    start = _period_start(node)
    ran = parse_ran(node.ran, node)
    if ran is None:
        return longest
    if ran.start < start:
        counted = ran.before_s + (ran.stop - ran.start) + (moment - start)
    elif node.state in {"stopping", "stopped"}:
        counted = ran.before_s + (ran.stop - ran.start)
    else:
        counted = ran.before_s + (moment - ran.start)
    return min(max(counted, 0.0), longest)


def ran_tag(node: Instance, *, now: datetime) -> str:
    """The tag's value for a node that is stopped now.

    For one that was to be stopped before and still runs it only moves the end: nothing counts twice.
    """
    start = _period_start(node)
    ran = parse_ran(node.ran, node)
    if ran is None:
        # Periods that nobody noted, if there were any, count in full, as running_s does.
        before_s = max(start - int(node.launched_at.timestamp()), 0)
    elif ran.start < start:
        before_s = ran.before_s + (ran.stop - ran.start)
    else:
        before_s = ran.before_s
    return f"{before_s},{start},{max(int(now.timestamp()), start)}"


def parse_ran(text: str | None, node: Instance) -> Ran | None:
    """The tag's content; None when there is no tag, or it cannot be true of the node (somebody changed it)."""
    found = _RAN.fullmatch(text or "")
    if found is None:
        return None
    ran = Ran(before_s=int(found[1]), start=int(found[2]), stop=int(found[3]))
    launched = int(node.launched_at.timestamp())
    is_possible = launched <= ran.start <= min(ran.stop, _period_start(node)) and ran.before_s <= ran.start - launched
    return ran if is_possible else None


def _period_start(node: Instance) -> int:
    """When it last began to run, in whole seconds since 1970, as EC2 has it."""
    return int((node.started_at or node.launched_at).astimezone(UTC).timestamp())
