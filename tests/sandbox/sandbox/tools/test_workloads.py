"""Workloads of clusters, between two hosts: schedulers, MPI, torchrun, containers and shared file systems.

`cluster sandbox install` installs packages of the machine's distribution; hosts use each other's DNS names. Instances
need the same setup as the hosts here, unless a comment says otherwise.
"""

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from foundation.errors import SandboxError
from foundation.progress import silent
from sandbox import control
from sandbox_steps import RunningSandbox, Ssh, enter, launch, start_sandbox
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={head}
NodeName={head},{other} CPUs=2
PartitionName=all Nodes=ALL Default=YES
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
"""
# Slurm needs systemd for cgroup2 unless IgnoreSystemd is set, and uses version 1 only if the plugin is named.
CGROUP_CONF = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
CGROUP_CONF_OF_HYBRID = "CgroupPlugin=cgroup/v1\n"

# The load average is that of the whole machine.
SET_UP_GRID_ENGINE = r"""
set -eu
sudo service gridengine-master start >/dev/null
until qconf -sh >/dev/null 2>&1; do sleep 0.2; done
sudo -u sgeadmin qconf -am "$(id -un)"
qconf -ah {other}
qconf -as {head}
printf 'group_name @allhosts\nhostlist {head} {other}\n' >group
qconf -Ahgrp group
cat >environment <<'END'
pe_name            mpi
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $round_robin
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
END
qconf -Ap environment
qconf -sq | sed 's/^qname .*/qname all.q/; s/^hostlist .*/hostlist @allhosts/; s/^pe_list .*/pe_list mpi/
    s/^slots .*/slots 2/; s/^shell .*/shell \/bin\/bash/; s/^load_thresholds .*/load_thresholds NONE/' >queue
qconf -Aq queue
"""
GRID_ENGINE_JOB = r"""#!/bin/bash
for host in $(cut -d ' ' -f 1 "$PE_HOSTFILE"); do qrsh -inherit "$host" hostname; done
exit 3
"""

ALL_REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {value.unique().tolist()}")
"""

MAKE_IMAGE = """
set -eu
mkdir -p image/bin
cp "$(command -v busybox)" image/bin/
for engine in podman "sudo podman"; do tar -C image -c . | $engine import - local/busybox >/dev/null; done
"""
IN_CONTAINER = "local/busybox busybox sh -c 'busybox df -k /dev/shm; busybox hostname; busybox id -u'"

# FSAL VFS, for folders of a disk, opens files by their handles, which only the machine's root may do.
GANESHA_CONF = """
NFSv4 { Graceless = true; }
MEM { Inode_Size = 1048576; }
EXPORT {
    Export_Id = 1; Path = /export; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
    FSAL { Name = MEM; }
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host by its private DNS name, and commands on it."""

    name: str
    address: str
    ssh: Ssh

    @property
    def short_name(self) -> str:
        return self.name.partition(".")[0]

    def read(self, command: str, *, stdin: str = "") -> str:
        return self.ssh.run(self.address, command, stdin=stdin).stdout.strip()

    def write(self, path: str, content: str) -> None:
        self.read(f"sudo tee {path} >/dev/null", stdin=content)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two hosts whose user can log in from one to the other, and who may reach all of each other's ports."""

    head: Host
    other: Host
    project_dir: Path

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.head, self.other

    @property
    def names(self) -> set[str]:
        return {host.short_name for host in self.hosts}

    def install(self, *packages: str) -> None:
        """Installs packages on the hosts. Skips the test if the machine's distribution does not have them."""
        try:
            control.install(self.project_dir, packages, report=silent)
        except SandboxError as error:
            if "Unable to locate package" in str(error):
                pytest.skip(str(error))
            raise


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, ssh: Ssh) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("workloads")
    with pytest.MonkeyPatch.context() as monkeypatch:
        running: RunningSandbox = start_sandbox(directory)
        try:
            enter(running, monkeypatch)
            instances = launch(ssh, 2)
            hosts = [Host(name=one["PrivateDnsName"], address=one["PrivateIpAddress"], ssh=ssh) for one in instances]
            ec2 = boto3.client("ec2")
            group_id = instances[0]["SecurityGroups"][0]["GroupId"]
            everything = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
            ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[everything])  # type: ignore[list-item]
            for host in hosts:
                host.read("cat >.ssh/id_ed25519 && chmod 600 .ssh/id_ed25519", stdin=ssh.key.read_text())
                host.read("echo 'StrictHostKeyChecking accept-new' >.ssh/config")
            yield Pair(head=hosts[0], other=hosts[1], project_dir=directory)
        finally:
            control.reset(directory, report=silent)


def test_slurm(pair: Pair) -> None:
    pair.install("slurmctld", "slurmd", "slurm-client", "munge")
    head, other = pair.hosts
    key = base64.b64encode(os.urandom(1024)).decode()
    is_hybrid = any(not line.startswith("0::") for line in Path("/proc/self/cgroup").read_text().splitlines())
    for host in pair.hosts:
        host.write("/etc/slurm/slurm.conf", SLURM_CONF.format(head=head.short_name, other=other.short_name))
        host.write("/etc/slurm/cgroup.conf", CGROUP_CONF_OF_HYBRID if is_hybrid else CGROUP_CONF)
        host.read(
            "base64 -d | sudo install -o munge -g munge -m 400 /dev/stdin /etc/munge/munge.key && "
            "sudo service munge restart",
            stdin=key,
        )
    head.read("sudo service slurmctld start")
    for host in pair.hosts:
        host.read("sudo service slurmd start")

    assert set(head.read("srun -N2 -n4 hostname").split()) == pair.names
    head.write("job.sh", "#!/bin/sh\nsrun hostname\nexit 7\n")
    done = head.ssh.run(head.address, "sbatch --wait -N2 --output=job.out job.sh", check=False)
    assert done.returncode == 7, done.stderr
    assert set(head.read("cat job.out").split()) == pair.names
    head.read("scancel $(sbatch --parsable -N2 --wrap 'srun sleep 600')")
    until(lambda: not head.read("squeue --noheader"), "a cancelled job stays")


def test_grid_engine(pair: Pair) -> None:
    pair.install("gridengine-master", "gridengine-exec", "gridengine-client")
    head, other = pair.hosts
    for host in pair.hosts:
        host.write("/var/lib/gridengine/default/common/act_qmaster", f"{head.name}\n")
    head.read(SET_UP_GRID_ENGINE.format(head=head.name, other=other.name))
    for host in pair.hosts:
        host.read("sudo service gridengine-exec start >/dev/null")

    head.write("job.sh", GRID_ENGINE_JOB)
    done = head.ssh.run(head.address, "qsub -sync y -cwd -j y -o job.log -pe mpi 4 job.sh", check=False)
    assert done.returncode == 3, f"{done.stdout}{done.stderr}{head.read('qstat -f')}"
    printed = "".join(host.read("cat job.log 2>/dev/null || true") for host in pair.hosts)  # on the host where it began
    assert set(printed.split()) == pair.names


def test_mpi_by_host_name(pair: Pair) -> None:
    pair.install("openmpi-bin")
    command = 'sh -c "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"'.replace("$", r"\$")
    head, other = pair.hosts
    said = head.read(f"mpirun --host {head.name}:1,{other.name}:1 {command}")
    assert set(said.splitlines()) == {f"0 of 2 on {head.short_name}", f"1 of 2 on {other.short_name}"}


def test_torchrun_with_gloo(pair: Pair) -> None:
    pair.install("python3-torch")
    head, other = pair.hosts
    for host in pair.hosts:
        host.write("all_reduce.py", ALL_REDUCE)
    # Debian 12's torch 1.13 fails on Python 3.11 unless the workers' output is redirected.
    command = (
        f"OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc_per_node 2 --master_addr {head.name} --master_port 29500 "
        "--redirects 1 --tee 1 --node_rank {} all_reduce.py"
    )
    other.read(f"setsid sh -c '{command.format(1)}' >torchrun.log 2>&1 </dev/null &")
    said = head.read(command.format(0))
    until(lambda: "rank 3" in other.read("cat torchrun.log"), "the other host's ranks do not end")
    ranks = re.findall(r"rank (\d) of 4 has \[10\.0\]", said + other.read("cat torchrun.log"))
    assert sorted(ranks) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("engine", "uid"), [("podman", "0"), ("sudo podman", "0")], ids=["rootless", "root"])
def test_podman(pair: Pair, engine: str, uid: str) -> None:
    """The containers on both hosts use the hosts' network: one serves a page, and the other one reads it."""
    pair.install("podman", "crun", "uidmap", "slirp4netns", "fuse-overlayfs", "busybox-static")
    head, other = pair.hosts
    for host in pair.hosts:
        host.read(MAKE_IMAGE)
    words = f"{engine} run --rm --network host --shm-size 200m"
    size, name, user = re.findall(r"^shm +(\d+)|^(ip-\S+)$|^(\d+)$", head.read(f"{words} {IN_CONTAINER}"), re.MULTILINE)
    assert (size[0], name[1], user[2]) == (str(200 * 1024), head.short_name, uid)

    page = "echo a page from $(busybox hostname) >/index.html; exec busybox httpd -f -p 8080 -h /"
    other.read(f"{words} --detach --name page local/busybox busybox sh -c '{page}'")
    try:
        read = f"{words} local/busybox busybox wget -q -O - http://{other.name}:8080/index.html"
        until(lambda: head.ssh.run(head.address, read, check=False).returncode == 0, "the page is not served")
        assert head.read(read) == f"a page from {other.short_name}"
    finally:
        other.read(f"{engine} kill page")


def test_sshfs(pair: Pair) -> None:
    pair.install("sshfs")
    head, other = pair.hosts
    other.read("mkdir -p shared && echo from the other >shared/file")
    head.read(f"mkdir -p seen && sshfs {other.name}:shared seen")
    try:
        assert head.read("cat seen/file") == "from the other"
        head.read("echo from the head >seen/back")
        assert other.read("cat shared/back") == "from the head"
    finally:
        head.read("fusermount3 -u seen")


def test_nfs_ganesha(pair: Pair) -> None:
    pair.install("nfs-ganesha", "nfs-ganesha-mem", "libnfs-utils", "rpcbind")
    head, other = pair.hosts
    other.write("/etc/ganesha/ganesha.conf", GANESHA_CONF)
    other.read("pgrep rpcbind || sudo rpcbind")
    other.read("sudo mkdir -p /run/ganesha && sudo ganesha.nfsd")  # systemd would make the folder
    url = f"nfs://{other.name}/export/file?version=4"
    head.read("echo over nfs >sent")
    copy = f"nfs-cp sent '{url}'"
    until(lambda: head.ssh.run(head.address, copy, check=False).returncode == 0, "the export cannot be written to")
    for host in pair.hosts:
        assert host.read(f"nfs-cat '{url}'") == "over nfs"
    assert " file" in head.read(f"nfs-ls 'nfs://{other.name}/export?version=4'")
    other.read("sudo pkill ganesha.nfsd")
