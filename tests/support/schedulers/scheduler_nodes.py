"""The nodes of a sandbox cluster, and commands on them, also as root."""

import re
import shlex
from dataclasses import dataclass

from project import Project


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster. names: the head's first. addresses: the private ones, in the same order."""

    project: Project
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def head(self) -> str:
        return self.names[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their host names, as EC2 assigns them, such as ip-10-0-0-4."""
        return tuple("ip-" + address.replace(".", "-") for address in self.addresses)

    def run(self, node: str, script: str, *, code: int | None = 0) -> str:
        """Runs a script on a node as the nodes' user; returns its output."""
        return self.project.run("ssh", node, "--", "bash", "-c", script, code=code).stdout

    def as_root(self, node: str, script: str) -> str:
        return self.run(node, f"sudo bash -euc {shlex.quote(script)}")

    def on_all_as_root(self, script: str) -> None:
        self.project.run("exec", "--", "sudo", "bash", "-euc", script)


def find_nodes(project: Project) -> Nodes:
    """The nodes of a project's cluster, which must be up."""
    rows = re.findall(r"^(node-\d+) .*? (10(?:\.\d+){3}) ", project.run("status").stdout, re.MULTILINE)
    return Nodes(project, tuple(name for name, _ in rows), tuple(address for _, address in rows))
