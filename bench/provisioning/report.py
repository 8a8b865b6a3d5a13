"""The section of RESULTS.md about provisioning."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.provisioning.launcher import Sample
from bench.provisioning.world import Calls

TITLE = "## `up` and `down` beside other launchers"
NOTES = """\
All of them on one sandbox, each from an empty account to an empty account (what `down` left was removed, not counted),
with a key pair, an instance profile and a default VPC with its route to the Internet there before. In turn in every
round; medians (min to max). Wall times of the commands as a whole, Python's start included, to the last node running
and answering over ssh. What takes long was measured in fewer rounds, as the column says: one round is no median.

- cluster, nodes only: what `cluster up` does until every node runs and has let us in, its host key verified by the
  console; so with the preflight, its own key pair, security group and placement group. To be compared with the others.
- cluster up, whole: the command. It also installs MXNet and the scripts on every node, which the others do not.
- flintrock: `launch` and `destroy` with --no-install-hdfs, --no-install-spark, and fakes of Java and yum by user data.
- skypilot: its provisioner, called as `sky launch` and `sky down` do, up to its ssh probe. Not in it: Python's start,
  its server, its optimizer, its check of quotas, its runtime on the nodes (which it would get from the Internet).

DryRun calls change nothing, and are in neither of the other columns. Every other call counts, refused and repeated ones
as well. "Left" is the most that was still there when `down` said that it was done; ours waits for the end of it all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thousand:
    """A cluster without hosts: the time and memory of each command, and the calls of up and down together."""

    count: int
    seconds: Mapping[str, float]
    memory_mb: Mapping[str, float]
    calls: Calls
    daemon_mb: float


def render(samples: Mapping[tuple[str, int], list[Sample]], *, thousand: Thousand, skipped: Mapping[str, str]) -> str:
    """Returns the whole section."""
    lines = [TITLE, "", NOTES, "", *_compared(samples), ""]
    lines += [f"- not measured: {name}: {' '.join(why.split())}" for name, why in skipped.items()]
    lines += ["", "The mutating calls of up and down together, with the most nodes that were measured:", ""]
    lines += [*_mutating(samples), "", *_thousand(thousand), ""]
    lines += ["- all: `sudo python -m bench provision`", ""]
    return "\n".join(lines)


def _compared(samples: Mapping[tuple[str, int], list[Sample]]) -> Iterable[str]:
    yield "| what | nodes | rounds | up s | down s | mutating calls | reading calls | DryRun | left by down |"
    yield "|---|---|---|---|---|---|---|---|---|"
    order = {name: position for position, name in enumerate(dict.fromkeys(name for name, _ in samples))}
    for (name, nodes), found in sorted(samples.items(), key=lambda item: (item[0][1], order[item[0][0]])):
        up, down = _spread([each.up_s for each in found]), _spread([each.down_s for each in found])
        totals = [each.up_calls + each.down_calls for each in found]
        counts = [
            _whole([getattr(total, kind).total() for total in totals]) for kind in ("mutating", "reading", "dry_runs")
        ]
        yield f"| {name} | {nodes} | {len(found)} | {up} | {down} | {' | '.join(counts)} | {_left(found)} |"


def _mutating(samples: Mapping[tuple[str, int], list[Sample]]) -> Iterable[str]:
    most = {name: max(nodes for other, nodes in samples if other == name) for name, _ in samples}
    for name, nodes in most.items():
        sample = samples[name, nodes][-1]
        calls = (sample.up_calls + sample.down_calls).mutating
        yield f"- {name}, {nodes} nodes: {_listed(calls)}"


def _thousand(thousand: Thousand) -> Iterable[str]:
    yield f"| {thousand.count} nodes without hosts, one round | s | peak memory, MB (wanted: 150 at most) |"
    yield "|---|---|---|"
    for name, seconds in thousand.seconds.items():
        yield f"| {name} | {seconds:.1f} | {thousand.memory_mb[name]:.0f} |"
    yield f"| the sandbox's daemon, not ours to bound | | {thousand.daemon_mb:.0f} |"
    calls = thousand.calls
    yield ""
    yield (
        f"Their calls, up and down together: {calls.mutating.total()} mutating ({_listed(calls.mutating)}), "
        f"{calls.reading.total()} reading, {calls.dry_runs.total()} DryRun."
    )


def _spread(values: list[float]) -> str:
    middle = f"{statistics.median(values):.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} to {max(values):.1f})"


def _whole(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{statistics.median_low(values)} ({low} to {high})"


def _left(found: list[Sample]) -> str:
    kinds: Counter[str] = Counter()
    for sample in found:
        kinds |= Counter(kind for kind, _ in sample.left)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"


def _listed(calls: Counter[str]) -> str:
    return ", ".join(f"{count} {action}" for action, count in sorted(calls.items(), key=lambda each: (-each[1], each)))
