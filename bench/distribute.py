"""Sends a file to 1, 4 and 16 nodes over shaped links: by `cluster`, also with a killed agent, and by rsync."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.distribution.nodes import BenchNode, Pushed, launch_nodes, push, shape, star
from bench.provision import message
from bench.provisioning.world import World, running_world
from ec2_sandbox.config import FolderSettings

SIZES = (1, 4, 16)
ALL = SIZES[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A file, the links over which it is sent, and the rounds of each contender by number of nodes."""

    megabytes: int
    mbit: int
    ours: dict[int, int]
    rsync: dict[int, int]
    disturbed: int

    @property
    def rounds(self) -> int:
        return max(*self.ours.values(), *self.rsync.values(), self.disturbed)


# The slowest cases have the fewest rounds, so that the whole benchmark ends within twelve minutes.
WEIGHTS = (
    Weight(megabytes=50, mbit=100, ours={1: 5, 4: 5, 16: 5}, rsync={1: 3, 4: 3, 16: 2}, disturbed=5),
    Weight(megabytes=500, mbit=1000, ours={1: 5, 4: 3, 16: 5}, rsync={1: 1, 16: 1}, disturbed=3),
    Weight(megabytes=500, mbit=250, ours={1: 1, 4: 0, 16: 1}, rsync={}, disturbed=0),
)


class Samples:
    """The measurements of one weight, by contender and number of nodes."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight
        self.seconds: dict[tuple[str, int], list[float]] = {}
        self.peak_mb: list[float] = []
        self.busy: dict[int, list[float]] = {}

    def add(self, name: str, count: int, seconds: float) -> None:
        self.seconds.setdefault((name, count), []).append(seconds)
        message(f"{self.weight.megabytes} MB to {count}, {name}: {seconds:.2f} s")

    def add_push(self, name: str, count: int, pushed: Pushed) -> None:
        self.peak_mb.append(pushed.peak_mb)
        self.busy.setdefault(count, []).append(pushed.busy)
        self.add(name, count, pushed.seconds)

    def ratio(self, one: tuple[str, int], other: tuple[str, int]) -> str:
        """Returns the ratio of two medians, or a dash if one of them was not measured."""
        if not {one, other} <= set(self.seconds):
            return "-"
        return f"{statistics.median(self.seconds[one]) / statistics.median(self.seconds[other]):.2f}"


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    with running_world(FolderSettings()) as world:
        nodes = launch_nodes(world, ALL)
        return render([measure(world, nodes, weight) for weight in WEIGHTS])


def measure(world: World, nodes: Sequence[BenchNode], weight: Weight) -> Samples:
    """Measures all contenders with one file, in turn."""
    file = world.folder / f"{weight.megabytes}MB.bin"
    write_file(file, weight.megabytes)
    push(world, nodes, file)  # not counted: pins the host keys, and makes the machine allocate memory
    shape(world, nodes, weight.mbit)
    samples = Samples(weight)
    for number in range(weight.rounds):
        for count in SIZES:
            some = nodes[:count]
            if number < weight.ours[count]:
                samples.add_push("cluster", count, push(world, some, file))
            if number < weight.rsync.get(count, 0):
                samples.add("rsync", count, star(world, some, file))
        if number < weight.disturbed:
            samples.add_push("cluster, disturbed", ALL, push(world, nodes, file, victim=nodes[ALL // 2]))
    for node in nodes:
        node.wipe()
    shape(world, nodes, 0)
    file.unlink()
    return samples


def write_file(path: Path, megabytes: int) -> None:
    """Writes a file that cannot be compressed."""
    with path.open("wb") as stream:
        for _ in range(megabytes):
            stream.write(os.urandom(1_000_000))


def render(measured: Sequence[Samples]) -> str:
    """Returns the section of RESULTS.md."""
    lines = ["## A file to many nodes", "", NOTES, "| file | what | nodes | rounds | median s | min | max |"]
    lines.append("|---|---|---|---|---|---|---|")
    for samples in measured:
        of = f"{samples.weight.megabytes} MB, {samples.weight.mbit} Mbit/s"
        for (name, count), seconds in sorted(samples.seconds.items(), key=lambda item: (item[0][0], item[0][1])):
            low, high = min(seconds), max(seconds)
            lines.append(
                f"| {of} | {name} | {count} | {len(seconds)} | {statistics.median(seconds):.2f} "
                f"| {low:.2f} | {high:.2f} |"
            )
    lines += [
        "",
        "| file | T(16)/T(1) | rsync/ours at 16 | disturbed/undisturbed | this machine busy at 1 | at 16 | MB |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for samples in measured:
        ours = ("cluster", ALL)
        busy = " | ".join(f"{statistics.median(samples.busy[count]):.0%}" for count in (1, ALL))
        lines.append(
            f"| {samples.weight.megabytes} MB, {samples.weight.mbit} Mbit/s | {samples.ratio(ours, ('cluster', 1))} "
            f"| {samples.ratio(('rsync', ALL), ours)} | {samples.ratio(('cluster, disturbed', ALL), ours)} "
            f"| {busy} | {max(samples.peak_mb):.0f} |"
        )
    return "\n".join([*lines, "", "- all: `sudo python -m bench distribute`", ""])


NOTES = """\
One file that cannot be compressed, to sandbox nodes whose links are shaped in each direction; all 16 nodes and this
machine's end share its cores. The nodes keep the file in memory, since all of them would share one disk. In turn in
every round; what takes more than a minute in fewer rounds, as the column says: one round is no median.

- cluster: `Distribution` (bootstrap/transfer/distribute.py) from the first ssh connection to the last node having it
  under its SHA-256; Python's start and the file's digest, known from the manifest, apart. The uplink of this machine is
  not shaped, so the first node's link is what a single node waits for.
- rsync: scp to the head, then from there `rsync -az` to all others at the same time, which is what launch.py does with
  --sync-dst-dir (dmlc_tracker/ssh.py).
- disturbed: the agent on node 8 of 16 is killed (SIGKILL) when it has half of the file; seconds to the last of the
  others.
- busy: the share of this machine's cores that was not idle meanwhile. Near 100 % it is they, and not the links, that
  the time comes from: a node receives, hashes, writes and sends 500 MB in about a second of one core, and there are 16.
- MB: the most memory that the process on the user's machine had.
"""
