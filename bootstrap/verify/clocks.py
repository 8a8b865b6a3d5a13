"""How far the nodes' clocks are apart. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bootstrap.verify.compute import Check, Status

MAX_APART_S = 5.0
S3_REFUSES_S = 900.0
"""RequestTimeTooSkewed (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """A clock against this machine's, in seconds: it is ahead by `ahead_s`, which may be wrong by `error_s`."""

    ahead_s: float
    error_s: float


def estimate_offset(samples: Sequence[tuple[float, float, float]]) -> Offset:
    """The best of some (sent here, read there, received here), each in seconds since the epoch.

    As NTP does (RFC 5905, section 8): the clock was read somewhere within the round trip, so the shortest one tells
    most. Pure.
    """
    sent, read, received = min(samples, key=lambda sample: sample[2] - sample[0])
    return Offset(ahead_s=read - (sent + received) / 2, error_s=max(0.0, received - sent) / 2)


def check_clocks(offsets: Mapping[str, Offset]) -> tuple[Check, ...]:
    """A check for each node. Of two clocks too far apart the one that is farther from the others' is wrong. Pure."""
    wrong = find_wrong(offsets)
    right = {node: offset for node, offset in offsets.items() if node not in wrong}
    return tuple(_check_clock(node, offset, others=right) for node, offset in offsets.items())


def find_wrong(offsets: Mapping[str, Offset]) -> frozenset[str]:
    """The nodes without which all others are within MAX_APART_S of each other. Pure."""
    left = dict(offsets)
    while True:
        apart = [
            (abs(left[a].ahead_s - left[b].ahead_s) - left[a].error_s - left[b].error_s, a, b)
            for a, b in combinations(left, 2)
        ]
        if not apart or max(apart)[0] <= MAX_APART_S:
            return frozenset(offsets) - frozenset(left)
        middle = statistics.median(offset.ahead_s for offset in left.values())
        # Of two nodes alone the one that agrees with this machine is believed.
        farthest = max(
            max(apart)[1:], key=lambda node: (round(abs(left[node].ahead_s - middle), 6), abs(left[node].ahead_s))
        )
        del left[farthest]


def _check_clock(node: str, offset: Offset, *, others: Mapping[str, Offset]) -> Check:
    from_here = abs(offset.ahead_s) - offset.error_s
    said = f"{_show(offset.ahead_s)} this machine's, ±{max(offset.error_s, 0.001):.3f} s"
    cause, hint = None, None
    if node not in others:
        cause = f"more than {MAX_APART_S:.0f} s from the other nodes' clocks: its time service does not run"
        hint = (
            f"cluster exec --node {node} -- sudo sh -c 'systemctl restart chrony || systemctl restart chronyd || "
            "systemctl restart systemd-timesyncd'"
        )
    elif from_here > MAX_APART_S:
        cause = "the nodes agree with each other, and this machine does not"
        if from_here > S3_REFUSES_S:
            cause += "; AWS refuses requests that are more than 15 minutes off"
        hint = "timedatectl, here: is this machine's time right?"
    status: Status = "failed" if node not in others else "warning" if cause else "ok"
    return Check(node=node, check="clock", subject="time", status=status, said=said, cause=cause, hint=hint)


def _show(ahead_s: float) -> str:
    return f"{abs(ahead_s):.3f} s {'ahead of' if ahead_s >= 0 else 'behind'}"
