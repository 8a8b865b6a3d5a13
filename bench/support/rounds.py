"""Measures contenders in turn, so that a drift of the machine's speed affects all of them."""

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Wall times of one contender, in seconds, in the order of the rounds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, which is the value to report."""
        return statistics.median(self.seconds)


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = ROUNDS, before: Callable[[], object] | None = None
) -> list[Timing]:
    """Runs each contender once without timing, and then times all of them in turn, `rounds` times.

    before: runs before each of them, and is not timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            if before is not None:
                before()
            started = time.perf_counter()
            run()
            if number:
                taken[name].append(time.perf_counter() - started)
    return [Timing(name=name, seconds=tuple(seconds)) for name, seconds in taken.items()]


def spread(values: Sequence[float], digits: int) -> str:
    """Returns the median and the range of the rounds."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def render_timings(title: str, timings: list[Timing], *, commands: Mapping[str, str]) -> str:
    """Returns a section of RESULTS.md. Ratios are relative to the last contender, the comparator."""
    comparator = timings[-1]
    lines = [f"## {title}", ""]
    lines += ["| what | median s | min | max | ratio to the last |", "|---|---|---|---|---|"]
    for timing in timings:
        ratio = timing.median_s / comparator.median_s
        low, high = min(timing.seconds), max(timing.seconds)
        lines.append(f"| {timing.name} | {timing.median_s:.3f} | {low:.3f} | {high:.3f} | {ratio:.2f} |")
    lines += ["", *(f"- {name}: `{command}`" for name, command in commands.items()), ""]
    return "\n".join(lines)


def describe_machine() -> str:
    """Returns a line with the date, the machine, Python's version and the commit, to print with results."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    cores = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {cores} cores of {model}, Python {platform.python_version()}, commit {commit.stdout.strip()}"
