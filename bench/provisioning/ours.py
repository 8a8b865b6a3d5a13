"""`cluster`: the command as a user types it, and the part of it that is comparable with the other launchers."""

import json
import sys

from bench.provisioning.launcher import timed_run
from bench.provisioning.world import INSTANCE_TYPE, World
from bench.support.command import CLUSTER, REPOSITORY


def write_config(world: World) -> None:
    """The shipped cluster.toml, with the bench's instance type."""
    text = (REPOSITORY / "cluster" / "default.toml").read_text()
    lines = [
        f'instance_type = "{INSTANCE_TYPE}"' if line.startswith("instance_type = ") else line
        for line in text.splitlines()
    ]
    (world.folder / "cluster.toml").write_text("\n".join([*lines, ""]))


class WholeCommand:
    """`cluster up` with all that it does: MXNet and the scripts are on every node when it ends."""

    name = "cluster up, whole"

    def __init__(self, world: World) -> None:
        self._world = world

    def up(self, count: int) -> float:
        return self._cluster("up", "--yes", "--nodes", str(count))

    def down(self) -> float:
        return self._cluster("down", "--yes")

    def forget(self) -> None:
        """`cluster down` has."""

    def close(self) -> None:
        """Nothing runs on."""

    def _cluster(self, *words: str) -> float:
        seconds, _ = timed_run([CLUSTER, *words], env=self._world.env, cwd=self._world.folder)
        return seconds


class NodesOnly(WholeCommand):
    """What `cluster up` does until every node runs and has let us in over ssh, in a process of its own."""

    name = "cluster, nodes only"

    def up(self, count: int) -> float:
        return launch_nodes(self._world, count, ssh=True)[0]


def launch_nodes(world: World, count: int, *, ssh: bool) -> tuple[float, dict[str, float]]:
    """The provisioning part of `cluster up` as a process; its seconds, and what it says of itself."""
    words = [sys.executable, "-m", "bench.provisioning.nodes_up", str(world.folder / "cluster.toml"), str(count)]
    env = {**world.env, "PYTHONPATH": str(REPOSITORY)}
    seconds, said = timed_run([*words, *(["--ssh"] if ssh else [])], env=env, cwd=world.folder)
    told: dict[str, float] = json.loads(said.splitlines()[-1])
    return seconds, told


def measured_command(world: World, *words: str) -> tuple[float, float]:
    """`cluster WORDS...`: its seconds, and the most memory that it had, in MB."""
    told = world.folder / "peak"
    env = {**world.env, "PYTHONPATH": str(REPOSITORY)}
    seconds, _ = timed_run(
        [sys.executable, "-m", "bench.provisioning.peak", str(told), *words], env=env, cwd=world.folder
    )
    return seconds, float(told.read_text())
