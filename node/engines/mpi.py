"""Open MPI's mpirun: through launch.py for MXNet's kv-store, else directly, for Horovod or mpi4py."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.engines.engine import (
    LOCAL_RANK,
    RANK,
    WORLD_SIZE,
    Framework,
    Head,
    HeadLaunch,
    Launch,
    NewProcess,
    Started,
    hosts_by_rank,
    list_hosts,
    take_turns,
)
from node.engines.launch_py import LaunchPy
from node.protocol import Order


class MpiEngine(LaunchPy):
    """With MXNet's kv-store, launch.py starts one mpirun for the servers and another for the workers.

    Both place processes by node, with any number on each; the workers start again at the first host. Without servers,
    mpirun starts only the workers, which find each other through Open MPI's variables: those of a node have consecutive
    ranks.
    """

    name = "mpi"
    frameworks: frozenset[Framework] = frozenset({"mxnet", "pytorch", "none"})
    uses_slots = True
    variables = ("DMLC_", "OMPI_", "OPAL_", "PMIX_", "PRTE_")

    def uses_kv_store(self, framework: Framework) -> bool:
        """Whether the framework is MXNet; callers handle kv_store = "none"."""
        return framework == "mxnet"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """Places processes as Open MPI does with the hostfile and the mapping policy below."""
        if not servers:
            return take_turns(hosts, workers, role="worker")
        once = list(dict.fromkeys(hosts))
        return take_turns(once, servers, role="server") + take_turns(once, workers, role="worker")

    def render_hostfile(self, order: Order) -> tuple[str, ...]:
        """Each host once, with its slots: otherwise Open MPI counts its cores, and may use it more than others."""
        if order.spec.servers:
            return tuple(f"{host.ip} slots=1" for host in dict.fromkeys(list_hosts(order)))
        return tuple(f"{host.ip} slots={host.workers}" for host in hosts_by_rank(order))

    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """The launch of launch.py for MXNet's kv-store, else of mpirun itself."""
        if order.spec.servers or (order.spec.workers == 1 and order.train.kv_store != "none"):
            return super().plan_launches(order, head)
        words = ("mpirun", "-n", str(order.spec.workers), "--hostfile", head.hostfile, *head.role_words)
        return (HeadLaunch(words, "mpirun", env=self._environment(order, head)),)

    def _options(self, order: Order, head: Head) -> list[str]:
        return ["-H", head.hostfile]  # here launch.py would take --p3 for the program's name

    def _environment(self, order: Order, head: Head) -> dict[str, str]:
        env = {
            **super()._environment(order, head),
            "OMPI_MCA_plm_rsh_agent": head.mpi_ssh,
            "CLUSTER_MPI_SSH": head.mpi_ssh,
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",  # only the head has a key for the others
            "OMPI_MCA_orte_leave_session_attached": "1",  # its daemons stay where their end is noticed
            "OMPI_MCA_rmaps_base_mapping_policy": "node" if order.spec.servers else "slot",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }
        orted = Path(order.spec.python).parent / "orted"
        if orted.exists():  # from a wheel, in a folder that other nodes do not search
            env["OMPI_MCA_orte_launch_agent"] = str(orted)
        if os.getuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return env

    def find_rank(self, launched: Mapping[str, str]) -> int | None:
        """Open MPI's rank; None for ps-lite's processes, to which ps-lite assigns the ranks."""
        if "DMLC_ROLE" in launched:
            return None
        return super().find_rank({RANK: launched.get("OMPI_COMM_WORLD_RANK", ""), **launched})

    def environment(self, process: NewProcess) -> dict[str, str]:
        """ps-lite's variables, or Open MPI's with the ranks under this project's names."""
        env = super().environment(process)
        if "DMLC_ROLE" not in env:
            for name, theirs in ((RANK, "RANK"), (WORLD_SIZE, "SIZE"), (LOCAL_RANK, "LOCAL_RANK")):
                if f"OMPI_COMM_WORLD_{theirs}" in env:
                    env[name] = env[f"OMPI_COMM_WORLD_{theirs}"]
        if "PMIX_INSTALL_PREFIX" in env:  # MPI_Init rejects it without OPAL_PREFIX, which orted does not set
            env.setdefault("OPAL_PREFIX", env["PMIX_INSTALL_PREFIX"])
        return env
