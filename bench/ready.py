"""Compares the time to get running nodes ready, when they have everything cached, with one `true` over ssh."""

import json
import statistics
import sys

from bench.distribution.nodes import find_nodes
from bench.provision import message
from bench.provisioning.launcher import timed_run
from bench.provisioning.ours import write_config
from bench.provisioning.world import World, running_world
from bench.support.command import CLUSTER, REPOSITORY
from ec2_sandbox.config import FolderSettings

NODES = 16
ROUNDS = 5
CONTENDERS = ("cluster", "Fabric, true", "OpenSSH, true")


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    with running_world(FolderSettings()) as world:
        write_config(world)
        message(f"making a cluster of {NODES} nodes")
        timed_run([CLUSTER, "up", "--yes", "--nodes", str(NODES)], env=world.env, cwd=world.folder)
        nodes = find_nodes(world.folder, world.instances("running"))
        seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        moved: dict[str, list[int]] = {name: [] for name in CONTENDERS}
        for number in range(ROUNDS + 1):
            for name in CONTENDERS:
                before = [node.link_bytes() for node in nodes]
                took = measure(world, name)
                most = max(node.link_bytes() - was for node, was in zip(nodes, before, strict=True))
                if number:  # the first round does not count
                    seconds[name].append(took)
                    moved[name].append(most)
                    message(f"{name}: {took:.2f} s, {most} bytes")
    return render(seconds, moved)


def measure(world: World, name: str) -> float:
    """Returns the seconds of one contender in a separate process, without its start and its imports."""
    words = [sys.executable, "-m", "bench.distribution.again", str(world.folder / "cluster.toml"), str(NODES), name]
    env = {**world.env, "PYTHONPATH": str(REPOSITORY)}
    _, output = timed_run(words, env=env, cwd=world.folder)
    told = json.loads(output.splitlines()[-1])
    if told["changed"]:
        sys.exit(f"not everything was cached: {told}")
    seconds: float = told["seconds"]
    return seconds


def render(seconds: dict[str, list[float]], moved: dict[str, list[int]]) -> str:
    """Returns the section of RESULTS.md."""
    lines = [f"## {NODES} nodes that lack nothing", "", NOTES]
    lines += [
        "| what | median s | min | max | ratio to Fabric | to OpenSSH | bytes per node |",
        "|---|---|---|---|---|---|---|",
    ]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        ratios = " | ".join(f"{medians[name] / medians[other]:.2f}" for other in CONTENDERS[1:])
        lines.append(
            f"| {name} | {medians[name]:.2f} | {min(values):.2f} | {max(values):.2f} | {ratios} | {max(moved[name])} |"
        )
    return "\n".join([*lines, "", "- all: `sudo python -m bench ready`", ""])


NOTES = f"""\
{NODES} sandbox nodes on this machine's cores, all of which run and answer. Medians of {ROUNDS} interleaved rounds, each
in a process of its own, whose start and imports are not counted.

- cluster: what `cluster up`, `train` and `verify` do before they use the nodes: ssh to all of them, their facts, the
  plan, and that nothing is to be done.
- Fabric, true: the same connections, and `true` on each. OpenSSH, true: {NODES} ssh commands side by side.
- bytes per node: the most that went over any node's link, both directions together.
"""
