"""Workloads of clusters, between two hosts: schedulers, MPI, torchrun, containers and shared file systems.

`cluster sandbox install` installs packages of the machine's distribution; hosts use each other's DNS names. Instances
need the same setup as the hosts here, unless a comment says otherwise.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from ec2_sandbox import control
from ec2_sandbox.errors import SandboxError
from foundation.progress import silent
from sandbox_steps import RunningSandbox, Ssh, enter, launch, start_sandbox
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


ALL_REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {value.unique().tolist()}")
"""


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
