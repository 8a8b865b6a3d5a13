"""The nodes of a sandbox cluster, as root on them sees them."""

import ipaddress
import re
import shlex
from dataclasses import dataclass

from project import Project


@dataclass(frozen=True)
class Nodes:
    """names: the head first. addresses: their private ones, in the same order."""

    project: Project
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def head(self) -> str:
        return self.names[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their host names, as EC2 gives them: ip-10-0-0-4."""
        return tuple("ip-" + address.replace(".", "-") for address in self.addresses)

    def run(self, node: str, script: str, *, code: int | None = 0) -> str:
        """The output of a script that the nodes' user runs on a node."""
        return self.project.run("ssh", node, "--", "bash", "-c", script, code=code).stdout

    def as_root(self, node: str, script: str) -> str:
        return self.run(node, f"sudo bash -euc {shlex.quote(script)}")

    def on_all_as_root(self, script: str) -> None:
        self.project.run("exec", "--", "sudo", "bash", "-euc", script)


def find_nodes(project: Project) -> Nodes:
    """The nodes of a project's cluster, which is up."""
    rows = re.findall(r"^(node-\d+) .*? (10(?:\.\d+){3}) ", project.run("status").stdout, re.MULTILINE)
    return Nodes(project, tuple(name for name, _ in rows), tuple(str(ipaddress.ip_address(one)) for _, one in rows))
