"""`up` and `down` beside other launchers on the same sandbox: API calls and wall time, and how they grow."""

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.provisioning.launcher import Launcher, LaunchError, Sample, measure
from bench.provisioning.others import Flintrock, Ray, SkyPilot
from bench.provisioning.ours import NodesOnly, WholeCommand, launch_nodes, measured_command, write_config
from bench.provisioning.peak import peak_mb
from bench.provisioning.report import Scale, Thousand, render
from bench.provisioning.tools import InstallError
from bench.provisioning.world import INSTANCE_TYPE, World, count_calls, running_world
from sandbox.config import SandboxConfig

SIZES = (2, 4, 8)
ROUNDS = 5
LARGE = 32
LARGE_ROUNDS = 3
MANY = 1000
BOOT_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A launcher, the numbers of nodes it is measured with, and how often."""

    make: Callable[[World], Launcher]
    name: str
    sizes: tuple[int, ...]
    rounds: int = ROUNDS


# What takes longest is measured least: the whole of it has to end within a quarter of an hour.
ENTRIES = (
    Entry(make=NodesOnly, name=NodesOnly.name, sizes=SIZES),
    Entry(make=WholeCommand, name=WholeCommand.name, sizes=SIZES, rounds=1),
    Entry(make=Flintrock, name=Flintrock.name, sizes=SIZES),
    Entry(make=SkyPilot, name=SkyPilot.name, sizes=SIZES),
    Entry(make=Ray, name=Ray.name, sizes=SIZES, rounds=1),
)

Samples = dict[tuple[str, int], list[Sample]]


def run() -> str:
    """All of it, as a section of RESULTS.md."""
    skipped: dict[str, str] = {}
    with running_world(SandboxConfig()) as world:
        write_config(world)
        measure(WholeCommand(world), world, 2)  # fetches the nodes' wheels: once for a machine, not for each `up`
        with started(world, skipped) as launchers:
            samples = measure_in_turn(launchers, world, skipped)
        scale = measure_scale(world)
    with running_world(SandboxConfig(hosts="none")) as world:
        write_config(world)
        thousand = measure_many(world)
    return render(samples, scale=scale, thousand=thousand, skipped=skipped)


@contextmanager
def started(world: World, skipped: dict[str, str]) -> Iterator[dict[str, Launcher]]:
    """The launchers by their names; why one cannot be had is put into `skipped`."""
    launchers: dict[str, Launcher] = {}
    try:
        for entry in ENTRIES:
            if entry.name not in launchers and entry.name not in skipped:
                say(f"getting {entry.name}")
                try:
                    launchers[entry.name] = entry.make(world)
                except (InstallError, LaunchError) as error:
                    skip(entry.name, error, skipped)
        yield launchers
    finally:
        for launcher in launchers.values():
            launcher.close()


def measure_in_turn(launchers: dict[str, Launcher], world: World, skipped: dict[str, str]) -> Samples:
    """Every launcher with every number of nodes in turn, as often as is wanted; one that fails is left out."""
    samples: Samples = {}
    for number in range(ROUNDS):
        for size in SIZES:
            for entry in ENTRIES:
                if size not in entry.sizes or number >= entry.rounds or entry.name in skipped:
                    continue
                try:
                    sample = measure(launchers[entry.name], world, size)
                except LaunchError as error:
                    if isinstance(launchers[entry.name], WholeCommand):
                        raise  # without our own there is nothing to compare
                    skip(entry.name, error, skipped)
                    continue
                samples.setdefault((entry.name, size), []).append(sample)
                say(f"round {number + 1}, {entry.name}, {size}: {sample.up_s:.1f} s, {sample.down_s:.1f} s")
    return {key: found for key, found in samples.items() if key[0] not in skipped}


def measure_scale(world: World) -> Scale:
    """A small cluster and a large one in turn, both ways and by boto3 alone, since a ratio wants the same rounds."""
    small = SIZES[0]
    boots: dict[int, list[float]] = {small: [], LARGE: []}
    samples: Samples = {}
    for number in range(LARGE_ROUNDS):
        for size, seconds in boots.items():
            for launcher in (NodesOnly(world), WholeCommand(world)):
                sample = measure(launcher, world, size)
                samples.setdefault((launcher.name, size), []).append(sample)
                say(f"scale {number + 1}, {launcher.name}, {size}: {sample.up_s:.1f} s, {sample.down_s:.1f} s")
            seconds.append(boot(world, size))
            say(f"scale {number + 1}, hosts alone, {size}: {seconds[-1]:.1f} s")
    return Scale(small=small, large=LARGE, boots=boots, samples=samples)


def boot(world: World, count: int) -> float:
    """Seconds from RunInstances to the last sshd answering, by boto3 alone."""
    before = world.inventory()
    started_at = time.perf_counter()
    made = world.ec2.run_instances(
        ImageId=world.image,
        InstanceType=INSTANCE_TYPE,
        MinCount=count,
        MaxCount=count,
        SecurityGroupIds=[world.default_group],
    )
    wait_for_sshd([instance["PrivateIpAddress"] for instance in made["Instances"]])
    seconds = time.perf_counter() - started_at
    world.sweep(world.inventory() - before)
    return seconds


def wait_for_sshd(addresses: Sequence[str]) -> None:
    """Until each has said who it is. One after the other: the last one's time is what counts."""
    give_up_at = time.monotonic() + BOOT_TIMEOUT_S
    for address in addresses:
        while not answers(address):
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"no sshd at {address} after {BOOT_TIMEOUT_S:.0f} s")
            time.sleep(0.02)


def answers(address: str) -> bool:
    """Whether an sshd greets there."""
    try:
        with socket.create_connection((address, 22), timeout=0.5) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def measure_many(world: World) -> Thousand:
    """The nodes of a cluster that no machine has room for: API and memory alone."""
    start = len(world.log_lines())
    up_s, told = launch_nodes(world, MANY, ssh=False)
    if len(world.instances("running")) != MANY:
        raise LaunchError(f"not all of {MANY} instances run")
    middle = len(world.log_lines())
    status_s, status_mb = measured_command(world, "status", "--json")
    down_from = len(world.log_lines())
    down_s, down_mb = measured_command(world, "down", "--yes")
    lines = world.log_lines()
    say(f"{MANY} without hosts: {up_s:.1f} s, {down_s:.1f} s")
    return Thousand(
        count=MANY,
        seconds={"up (nodes only)": up_s, "status": status_s, "down": down_s},
        memory_mb={"up (nodes only)": told["peak_mb"], "status": status_mb, "down": down_mb},
        calls=count_calls(lines[start:middle]) + count_calls(lines[down_from:]),
        daemon_mb=peak_mb(world.daemon_pid),
    )


def skip(name: str, error: Exception, skipped: dict[str, str]) -> None:
    """Leave a launcher out: its last words are for RESULTS.md, all of them for whoever runs this."""
    say(f"{name} is left out: {error}")
    skipped[name] = str(error).splitlines()[-1]


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
