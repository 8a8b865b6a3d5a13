"""Real Slurm on the nodes of a sandbox cluster, with the PBS commands on top of it."""

import shlex

from project import Project
from scheduler_nodes import Nodes, find_nodes

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
# No cgroups: the processes of a job start over ssh, where Slurm cannot contain them.
CONF = """\
ClusterName=tests
SlurmctldHost={head}
SlurmUser=slurm
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=60
KillWait=5
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
{nodes}
PartitionName=cluster Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
"""
INSTALL = r"""
printf %s {key} >/etc/munge/munge.key; chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
install -d /etc/slurm /var/lib/slurm /var/log/slurm /var/lib/slurm/slurmd
install -d -o slurm -g slurm /var/lib/slurm/slurmctld
printf %s {conf} >/etc/slurm/slurm.conf
# Without this, slurmd 22.05 looks for version 2, and does not start.
! grep -qv '^0:' /proc/self/cgroup || echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
for name in slurmd slurmctld munged; do pkill -x $name && sleep 1; done
install -d -o munge -g munge -m 755 /run/munge
runuser -u munge -- /usr/sbin/munged
[ "$(uname -n | cut -d. -f1)" != {head} ] || slurmctld
"""


def start(project: Project) -> Nodes:
    """Configures and starts Slurm on all nodes, which have its packages: slurmctld on the head, slurmd everywhere."""
    found = find_nodes(project)
    facts = "$(getconf _NPROCESSORS_ONLN) RealMemory=$(awk '/MemTotal/ {print int($2 / 1100)}' /proc/meminfo)"
    size = found.run(found.head, f'echo "CPUs={facts}"').strip()
    listed = (
        f"NodeName={host} NodeAddr={address} {size} State=UNKNOWN"
        for host, address in zip(found.hosts, found.addresses, strict=True)
    )
    conf = CONF.format(head=f"{found.hosts[0]}({found.addresses[0]})", nodes="\n".join(listed))
    script = INSTALL.format(key="k" * 64, conf=shlex.quote(conf), head=found.hosts[0])
    found.on_all_as_root(script)
    found.on_all_as_root("slurmd")  # once slurmctld runs
    return found
