"""The interface of launchers in the benchmark, and one round of a launcher."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.provisioning.world import Calls, Inventory, World, count_calls

TIMEOUT_S = 600.0
LAST_LINES = 15


class LaunchError(Exception):
    """A launcher failed. The message contains the end of its output."""


class Launcher(ABC):
    """A program that creates and deletes a cluster."""

    name: str

    @abstractmethod
    def up(self, count: int) -> float:
        """Launches `count` nodes in total. Returns the seconds until they run and ssh answers. Raises LaunchError."""

    @abstractmethod
    def down(self) -> float:
        """Deletes the nodes. Returns the seconds until the launcher reports success. Raises LaunchError."""

    def forget(self) -> None:  # noqa: B027 - most have nothing to remove
        """Removes local files that would change the next round."""

    def close(self) -> None:  # noqa: B027 - most have no processes
        """Ends the processes that it runs on this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One up and down. left: the resources that still existed when down had ended."""

    up_s: float
    down_s: float
    up_calls: Calls
    down_calls: Calls
    left: Inventory


def measure(launcher: Launcher, world: World, count: int) -> Sample:
    """Measures one round, from an empty account to an empty account. Raises LaunchError."""
    before = world.inventory()
    try:
        start = len(world.log_lines())
        up_s = launcher.up(count)
        middle = len(world.log_lines())
        running = len(world.instances("running"))
        if running != count:
            raise LaunchError(f"{launcher.name}: {running} instances run, and not {count}")
        down_from = len(world.log_lines())
        down_s = launcher.down()
        end = len(world.log_lines())
        left = world.inventory() - before
    finally:
        world.sweep(world.inventory() - before)
        launcher.forget()
    lines = world.log_lines()
    return Sample(
        up_s=up_s,
        down_s=down_s,
        up_calls=count_calls(lines[start:middle]),
        down_calls=count_calls(lines[down_from:end]),
        left=left,
    )


def timed_run(words: list[str], *, env: Mapping[str, str], cwd: Path) -> tuple[float, str]:
    """Runs a command. Returns its duration in seconds and its stdout. Raises LaunchError if it fails."""
    started = time.perf_counter()
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{' '.join(words[:4])}: not done after {TIMEOUT_S:.0f} s") from error
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-LAST_LINES:])
        raise LaunchError(f"{' '.join(words[:4])}: exit code {done.returncode}\n{output}")
    return seconds, done.stdout
