"""`cluster train -H slurm` inside a real Slurm allocation, with cloud = "hosts": it uses exactly the nodes assigned.

The command runs on a sandbox host that has Slurm: with salloc on the login host, with sbatch on the first node itself.
"""

import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import real_slurm
from command_on_host import PYTHON, may_place_command, own, place_command
from ec2_sandbox import control
from foundation.progress import silent
from job_steps import hosts_of
from project import REPOSITORY, Project
from scheduler_nodes import Nodes

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.skipif(not may_place_command(), reason=f"hosts have no {PYTHON}, or share this folder"),
]

CONFIG = """
name = "inside"
cloud = "hosts"

[bootstrap]
framework = "none"
sync = []
"""
SAYS = ("sh", "-c", "echo rank $RANK of $WORLD_SIZE on $CLUSTER_HOST, $(uname -n)")
SAID = r"rank (\d) of (\d) on (\S+), (\S+)"


@dataclass(frozen=True)
class World:
    """Three nodes with Slurm. node-0 has the command `cluster`, and a project with cloud = "hosts" in its home."""

    nodes: Nodes
    command: str

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.nodes.hosts

    def on_login_host(self, words: str) -> str:
        """Returns what a command prints in the project's folder on node-0."""
        return self.nodes.run("node-0", f"cd ~/project && {words}")

    def find_set_up(self) -> list[str]:
        """Returns the hosts that the cluster of that project has set up."""
        homes = [host.root / "home/ubuntu" for host in hosts_of(self.nodes.project).values()]
        keys = [(home / ".ssh/authorized_keys").read_text() for home in homes]
        return [host for host, text in zip(self.hosts, keys, strict=True) if "cluster-internal-inside-" in text]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    project = Project(tmp_path_factory.mktemp("allocation"))
    try:
        nodes = real_slurm.set_up(project, nodes=3, framework="none")
        yield make_world(nodes)
    finally:
        control.reset(project.directory, report=silent)


def make_world(nodes: Nodes) -> World:
    """Gives node-0 the command and a key that all nodes accept, and lets it find the nodes by their names."""
    found = hosts_of(nodes.project)
    head = found["node-0"]
    home = head.root / "home/ubuntu"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    command = place_command(head.root, home, cache=Path(cache) / "cluster")
    nodes.run("node-0", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
    key = (home / ".ssh/id_ed25519.pub").read_text()
    known, names = "", "127.0.0.1 localhost\n"
    for name, host in zip(nodes.names, nodes.hosts, strict=True):
        with (found[name].root / "home/ubuntu/.ssh/authorized_keys").open("a") as file:
            file.write(key)
        public = (found[name].root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        known += f"{host} {public[0]} {public[1]}\n"
        names += f"{found[name].address} {host}\n"
    (home / ".ssh/known_hosts").write_text(known)
    own(home, ".ssh")
    for name in nodes.names:
        (found[name].root / "etc/hosts").write_text(names)
    (home / "project").mkdir()
    (home / "project/cluster.toml").write_text(CONFIG)
    own(home, "project")
    return World(nodes, command)


def test_the_commands_of_the_page(world: World) -> None:
    """Typed as printed: the next ones in the shell that salloc starts."""
    page = (REPOSITORY / "docs" / "how-to" / "existing-hosts.md").read_text()
    [block] = re.findall(r"^    (salloc .*\n(?:    .*\n)*)", page, re.MULTILINE)
    settings = CONFIG.replace("sync = []\n", "").replace("inside", "page")
    script = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    files = f"printf %s {shlex.quote(settings)} >cluster.toml && printf %s {shlex.quote(script)} >train.py"
    shell = (
        f"printf %s {shlex.quote(textwrap.dedent(f'    {block}'))} | PATH={Path(world.command).parent}:$PATH bash -eu"
    )
    done = world.nodes.run("node-0", f"mkdir ~/page && cd ~/page && {files} && {shell}")
    assert sorted(re.findall(r"rank \d of \d", done)) == ["rank 0 of 2", "rank 1 of 2"], done
    assert "cleaned " in done


def test_the_nodes_of_sbatch_with_two_processes_each(world: World) -> None:
    """The batch script runs on the first of them, which becomes the head."""
    wanted = list(world.hosts[:2])
    script = f"#!/bin/sh\ncd ~/project && {world.command} train -H slurm -- {shlex.join(SAYS)}\n"
    options = f"-N 2 --ntasks-per-node 2 --nodelist {','.join(wanted)} --output=said --wait"
    done = world.on_login_host(f"printf %s {shlex.quote(script)} >job.sh && sbatch {options} job.sh; cat said")
    assert sorted(re.findall(SAID, done)) == [
        (str(rank), "4", wanted[rank // 2], wanted[rank // 2]) for rank in range(4)
    ], done
    assert world.find_set_up() == wanted
