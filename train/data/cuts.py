"""Where a row of records is cut into shards. Pure."""

from collections.abc import Sequence
from itertools import accumulate

from provision.errors import UsageError


def plan_cuts(weights: Sequence[int], shards: int) -> tuple[int, ...]:
    """Where each of `shards` consecutive groups ends, so that they weigh about the same and none is empty.

    Raises UsageError where there are fewer weights than shards.
    """
    if shards > len(weights):
        raise UsageError(f"{len(weights)} records do not fill {shards} shards", hint=f"--shards {len(weights)} at most")
    total = sum(weights)
    ends = []
    at = 0
    sums = list(accumulate(weights, initial=0))
    for number in range(1, shards):
        least, most = at + 1, len(weights) - (shards - number)
        at = least
        while at < most and (sums[at] + sums[at + 1]) * shards <= 2 * total * number:
            at += 1
        ends.append(at)
    return (*ends, len(weights))
