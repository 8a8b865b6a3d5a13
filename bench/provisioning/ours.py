"""`cluster`: the whole command, and the part of it that is comparable with the other launchers."""

import json
import sys

from bench.provisioning.launcher import Launcher, timed_run
from bench.provisioning.world import INSTANCE_TYPE, World
from bench.support.command import CLUSTER, REPOSITORY


def write_config(world: World) -> None:
    """Writes the default cluster.toml with the benchmark's instance type."""
    text = (REPOSITORY / "cluster" / "default.toml").read_text()
    lines = [
        f'instance_type = "{INSTANCE_TYPE}"' if line.startswith("instance_type = ") else line
        for line in text.splitlines()
    ]
    (world.folder / "cluster.toml").write_text("\n".join([*lines, ""]))


class WholeCommand(Launcher):
    """The whole `cluster up`: when it ends, MXNet and the scripts are on every node."""

    name = "cluster up, whole"

    def __init__(self, world: World) -> None:
        self._world = world

    def up(self, count: int) -> float:
        return self._cluster("up", "--yes", "--nodes", str(count))

    def down(self) -> float:
        return self._cluster("down", "--yes")

    def _cluster(self, *words: str) -> float:
        seconds, _ = timed_run([CLUSTER, *words], env=self._world.env, cwd=self._world.folder)
        return seconds


class NodesOnly(WholeCommand):
    """The part of `cluster up` until every node runs and has accepted a login over ssh, in a separate process."""

    name = "cluster, nodes only"

    def up(self, count: int) -> float:
        return launch_nodes(self._world, count, ssh=True)[0]


def launch_nodes(world: World, count: int, *, ssh: bool) -> tuple[float, dict[str, float]]:
    """Runs the provisioning part of `cluster up` in a process. Returns its seconds, and the JSON that it prints."""
    words = [sys.executable, "-m", "bench.provisioning.nodes_up", str(world.folder / "cluster.toml"), str(count)]
    env = {**world.env, "PYTHONPATH": str(REPOSITORY)}
    seconds, output = timed_run([*words, *(["--ssh"] if ssh else [])], env=env, cwd=world.folder)
    told: dict[str, float] = json.loads(output.splitlines()[-1])
    return seconds, told


def measured_command(world: World, *words: str) -> tuple[float, float]:
    """Runs `cluster WORDS...`. Returns its seconds, and its peak memory in MB."""
    told = world.folder / "peak"
    env = {**world.env, "PYTHONPATH": str(REPOSITORY)}
    seconds, _ = timed_run(
        [sys.executable, "-m", "bench.provisioning.peak", str(told), *words], env=env, cwd=world.folder
    )
    return seconds, float(told.read_text())
