"""MXNet's own tools/launch.py: by ssh to the hosts of its hostfile, or with all processes on the head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from train.engines.engine import Engine, HostFiles, Launch, take_turns
from train.job.protocol import Order


class LaunchPy(Engine):
    """Common to all of launch.py's launchers."""

    def plan_launch(self, order: Order, files: HostFiles, role_words: Sequence[str]) -> Launch:
        """launch.py's command line; without servers, the one worker directly.

        launch.py would start a scheduler, which waits for ever for a worker that does not need it.
        """
        if not order.servers:
            host = (order.hostfile or (order.hosts[0].ip,))[0].partition(":")[0]
            return Launch("ssh_proxy", ("--role", "worker", host), is_launcher=False)
        words = [order.hosts[0].ip, "-n", str(order.workers), "-s", str(order.servers), "--launcher", self.name]
        words += self._options(order, files)
        return Launch("launch", (*words, *role_words), env=self._environment(order, files))

    def _options(self, order: Order, files: HostFiles) -> list[str]:
        hostfile = [] if self.name == "local" else ["-H", files.hostfile]
        return [*hostfile, "--p3"] if order.p3 else hostfile

    def _environment(self, order: Order, files: HostFiles) -> dict[str, str]:
        return {}


class SshLaunchPy(LaunchPy):
    """`--launcher ssh`: servers first, then workers, each on the next line of the hostfile."""

    name = "ssh"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As launch.py does it."""
        return take_turns(hosts, servers, role="server") + take_turns(hosts, workers, role="worker", first=servers)


class LocalLaunchPy(LaunchPy):
    """`--launcher local`: all processes on the head."""

    name = "local"
    is_on_head = True
    is_for_nodes_alone = "it runs everything on the head"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As launch.py does it."""
        return take_turns([head], servers, role="server") + take_turns([head], workers, role="worker")
