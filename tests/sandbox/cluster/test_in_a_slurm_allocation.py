"""`cluster train -H slurm` inside a real Slurm allocation, with cloud = "hosts": it uses the nodes assigned.

The command runs on a sandbox host that has Slurm; test_existing_hosts.py has one without it.
"""

import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import real_slurm
from command_on_host import PYTHON, may_place_command, own, place_command
from job_steps import hosts_of
from project import REPOSITORY, cluster_in, shipped
from scheduler_nodes import Nodes

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.skipif(not may_place_command(), reason=f"hosts have no {PYTHON}, or share this folder"),
]

CONFIG = """
name = "page"
cloud = "hosts"

[bootstrap]
framework = "none"
"""
SCRIPT = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


def place_user(nodes: Nodes) -> str:
    """Gives node-0 the command, which it returns, a project, and a key that all nodes, known by names, accept."""
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
    (home / "page").mkdir()
    (home / "page/cluster.toml").write_text(CONFIG)
    (home / "page/train.py").write_text(SCRIPT)
    own(home, "page")
    return command


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Runs what is typed on node-0, in the project's folder; returns the output."""
    with cluster_in(tmp_path_factory.mktemp("salloc"), shipped(framework="none")) as project:
        project.run("sandbox", "install", *real_slurm.PACKAGES, timeout_s=600)
        nodes = real_slurm.start(project)
        path = Path(place_user(nodes)).parent

        def run(typed: str) -> str:
            script = f"printf %s {shlex.quote(typed)} | PATH={path}:$PATH bash -u 2>&1"
            return nodes.run("node-0", f"cd ~/page && {script}")

        yield run


def test_the_commands_of_the_page(shell: Callable[[str], str]) -> None:
    """Typed as printed: the next ones in the shell that salloc starts."""
    page = (REPOSITORY / "docs" / "how-to" / "existing-hosts.md").read_text()
    [block] = re.findall(r"^    (salloc .*\n(?:    .*\n)*)", page, re.MULTILINE)
    done = shell(textwrap.dedent(f"    {block}"))
    assert sorted(re.findall(r"rank \d of \d", done)) == ["rank 0 of 2", "rank 1 of 2"], done
    assert "cleaned " in done


def test_the_end_of_the_allocation(shell: Callable[[str], str]) -> None:
    """Slurm's shortest walltime is a minute."""
    done = shell("salloc -N 2 --time 1 cluster train -H slurm -- sleep 600\necho exits with $?\ncluster down --yes\n")
    assert re.search(r"Slurm job \d+ ended: it reached its walltime", done), done
    assert "exits with 124" in done
    assert "cleaned " in done
