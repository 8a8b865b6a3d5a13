"""Real Slurm on the nodes of a sandbox cluster, set up by [bootstrap] scheduler, with the PBS commands on top of it."""

import json
from typing import Any

from project import REPOSITORY, Project, configure
from scheduler_nodes import Nodes, find_nodes

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PBS_PACKAGES = ("slurm-wlm-torque",)
SHORT = "scontrol create PartitionName=short Nodes=ALL MaxTime=00:01:00 MinNodes=1 MaxNodes=1"


def set_up(project: Project, *, with_pbs: bool = True, nodes: int = 2, **values: Any) -> Nodes:
    """Brings a cluster up with the partition `cluster`, and `short`: one node, one minute.

    values: for keys of cluster.toml.
    """
    packages = [*PACKAGES, *(PBS_PACKAGES if with_pbs else ())]
    text = configure((REPOSITORY / "cluster.toml").read_text(), scheduler="slurm", **values)
    text = text.replace("nodes = 2", f"nodes = {nodes}", 1)
    project.write(text.replace("[sandbox] ", f"[sandbox]\npackages = {json.dumps(packages)} "))
    project.run("up")
    found = find_nodes(project)
    found.as_root(found.head, SHORT)
    return found
