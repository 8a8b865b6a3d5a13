"""Compares `cluster up` of this checkout with that of another checkout, in turn, on the same sandbox.

    git worktree add ../before COMMIT && make -C ../before install
    python -m bench.beside ../before

The other checkout must have the same commands, cluster.toml and AWS calls as this one, but may have another sandbox.
"""

import sys
from pathlib import Path

from bench.__main__ import write_section
from bench.provision import message
from bench.provisioning.launcher import timed_run
from bench.provisioning.ours import write_config
from bench.provisioning.world import World, running_world
from bench.support.command import CLUSTER
from bench.support.rounds import ROUNDS, Timing, describe_machine
from ec2_sandbox.config import FolderSettings

NODES = (2, 16)
TITLE = "## `cluster up` beside another commit"


def measure(world: World, nodes: int, commands: dict[str, str]) -> list[Timing]:
    """Time `up` of each command in turn, each time without a cluster. The first round does not count."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            up_s, _ = timed_run([command, "up", "--yes", "--nodes", str(nodes)], env=world.env, cwd=world.folder)
            timed_run([command, "down", "--yes"], env=world.env, cwd=world.folder)
            message(f"{name}, {nodes} nodes: {up_s:.2f} s")
            if number:
                taken[name].append(up_s)
    return [Timing(name=name, seconds=tuple(seconds)) for name, seconds in taken.items()]


def render(found: dict[int, list[Timing]], other: Path) -> str:
    """Returns the section of RESULTS.md."""
    lines = [
        TITLE,
        "",
        describe_machine(),
        "",
        "The command as it is typed, from nothing, with MXNet's wheels in the cache. In turn, on one sandbox.",
        "",
        "| nodes | this commit, median s | min to max | the other, median s | min to max | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for nodes, (ours, theirs) in found.items():
        spans = [f"{each.median_s:.2f} | {min(each.seconds):.2f} to {max(each.seconds):.2f}" for each in (ours, theirs)]
        lines.append(f"| {nodes} | {' | '.join(spans)} | {ours.median_s / theirs.median_s:.2f} |")
    return "\n".join([*lines, "", f"- all: `python -m bench.beside ../{other.name}`", ""])


def main() -> None:
    """Measures and writes the section."""
    other = Path(sys.argv[1]).resolve()
    commands = {"this commit": CLUSTER, "the other": str(other / ".venv" / "bin" / "cluster")}
    with running_world(FolderSettings()) as world:
        write_config(world)
        config = world.folder / "cluster.toml"  # the other commit treats the sandbox as AWS, so this one must, too
        config.write_text(config.read_text().replace('cloud = "sandbox"', 'cloud = "aws"'))
        found = {nodes: measure(world, nodes, commands) for nodes in NODES}
    section = render(found, other)
    print(section)
    write_section(TITLE, section)


if __name__ == "__main__":
    main()
