"""Compares `up` and `down` with other launchers on the same sandbox: API calls and wall time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.provisioning.launcher import Launcher, LaunchError, Sample, measure
from bench.provisioning.others import Flintrock, SkyPilot
from bench.provisioning.ours import NodesOnly, WholeCommand, launch_nodes, measured_command, write_config
from bench.provisioning.peak import peak_mb
from bench.provisioning.report import Thousand, render
from bench.provisioning.tools import InstallError
from bench.provisioning.world import World, count_calls, running_world
from ec2_sandbox.config import FolderSettings

SIZES = (2, 4, 8)
ROUNDS = 5
MANY = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A launcher and the number of its rounds."""

    make: Callable[[World], Launcher]
    name: str
    rounds: int = ROUNDS


ENTRIES = (
    Entry(make=NodesOnly, name=NodesOnly.name),
    Entry(make=WholeCommand, name=WholeCommand.name, rounds=1),
    Entry(make=Flintrock, name=Flintrock.name),
    Entry(make=SkyPilot, name=SkyPilot.name),
)

Samples = dict[tuple[str, int], list[Sample]]


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    skipped: dict[str, str] = {}
    with running_world(FolderSettings()) as world:
        write_config(world)
        measure(WholeCommand(world), world, 2)  # fetches the nodes' wheels, once for this machine and not for each `up`
        with started(world, skipped) as launchers:
            samples = measure_in_turn(launchers, world, skipped)
    with running_world(FolderSettings(hosts="none")) as world:
        write_config(world)
        thousand = measure_many(world)
    return render(samples, thousand=thousand, skipped=skipped)


@contextmanager
def started(world: World, skipped: dict[str, str]) -> Iterator[dict[str, Launcher]]:
    """Yields the launchers by name. Adds the reason to `skipped` if a launcher cannot be installed or started."""
    launchers: dict[str, Launcher] = {}
    try:
        for entry in ENTRIES:
            message(f"getting {entry.name}")
            try:
                launchers[entry.name] = entry.make(world)
            except (InstallError, LaunchError) as error:
                skip(entry.name, error, skipped)
        yield launchers
    finally:
        for launcher in launchers.values():
            launcher.close()


def measure_in_turn(launchers: dict[str, Launcher], world: World, skipped: dict[str, str]) -> Samples:
    """Measures each launcher with each number of nodes, in turn. Omits a launcher that fails."""
    samples: Samples = {}
    for number in range(ROUNDS):
        for size in SIZES:
            for entry in ENTRIES:
                if number >= entry.rounds or entry.name in skipped:
                    continue
                try:
                    sample = measure(launchers[entry.name], world, size)
                except LaunchError as error:
                    if isinstance(launchers[entry.name], WholeCommand):
                        raise  # without `cluster`, a comparison is pointless
                    skip(entry.name, error, skipped)
                    continue
                samples.setdefault((entry.name, size), []).append(sample)
                message(f"round {number + 1}, {entry.name}, {size}: {sample.up_s:.1f} s, {sample.down_s:.1f} s")
    return {key: found for key, found in samples.items() if key[0] not in skipped}


def measure_many(world: World) -> Thousand:
    """Measures a cluster that is too large for one machine, without hosts: only API calls, time and memory."""
    start = len(world.log_lines())
    up_s, told = launch_nodes(world, MANY, ssh=False)
    if len(world.instances("running")) != MANY:
        raise LaunchError(f"not all of {MANY} instances run")
    middle = len(world.log_lines())
    status_s, status_mb = measured_command(world, "status", "--json")
    down_from = len(world.log_lines())
    down_s, down_mb = measured_command(world, "down", "--yes")
    lines = world.log_lines()
    message(f"{MANY} without hosts: {up_s:.1f} s, {down_s:.1f} s")
    return Thousand(
        count=MANY,
        seconds={"up (nodes only)": up_s, "status": status_s, "down": down_s},
        memory_mb={"up (nodes only)": told["peak_mb"], "status": status_mb, "down": down_mb},
        calls=count_calls(lines[start:middle]) + count_calls(lines[down_from:]),
        daemon_mb=peak_mb(world.daemon_pid),
    )


def skip(name: str, error: Exception, skipped: dict[str, str]) -> None:
    """Omits a launcher. The last line of its error goes into RESULTS.md; the whole error is printed."""
    message(f"{name} is left out: {error}")
    skipped[name] = str(error).splitlines()[-1]


def message(text: str) -> None:
    """Prints progress on stderr."""
    print(text, file=sys.stderr, flush=True)
