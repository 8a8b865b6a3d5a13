"""Workloads of clusters, between two hosts: torchrun and NFS.

`cluster sandbox install` installs packages of the machine's distribution; hosts use each other's DNS names. Instances
need the same setup as the hosts here, unless a comment says otherwise.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ec2_sandbox import control
from ec2_sandbox.errors import SandboxError
from foundation.progress import silent
from sandbox_steps import Ssh, enter, launch, sandbox_in
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


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, ssh: Ssh) -> Iterator[tuple[str, str]]:
    """The addresses of two hosts whose user can log in from one to the other by DNS names, with all ports open."""
    directory = tmp_path_factory.mktemp("workloads")
    with sandbox_in(directory) as running, pytest.MonkeyPatch.context() as monkeypatch:
        enter(running, monkeypatch)
        install(directory, "python3-torch", "nfs-ganesha", "nfs-ganesha-mem", "libnfs-utils", "rpcbind")
        hosts = launch(ssh, 2, timeout_s=600)
        group_id = hosts[0]["SecurityGroups"][0]["GroupId"]
        everything: Any = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
        boto3.client("ec2").authorize_security_group_ingress(GroupId=group_id, IpPermissions=[everything])
        yield hosts[0]["PrivateIpAddress"], hosts[1]["PrivateIpAddress"]


def install(directory: Path, *packages: str) -> None:
    """Installs packages on the hosts. Skips the test if the machine's distribution does not have them."""
    try:
        control.install(directory, packages, report=silent)
    except SandboxError as error:
        if "Unable to locate package" in str(error):
            pytest.skip(str(error))
        raise


def test_torchrun_with_gloo(names: tuple[str, str], ssh: Ssh) -> None:
    head, other = names
    for host in names:
        ssh.run(host, "cat >all_reduce.py", stdin=ALL_REDUCE)
    # Debian 12's torch 1.13 fails on Python 3.11 unless the workers' output is redirected.
    command = (
        f"OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc_per_node 2 --master_addr {ssh.read(head, 'hostname -f')} "
        "--master_port 29500 --redirects 1 --tee 1 --node_rank {} all_reduce.py"
    )
    ssh.run(other, f"setsid sh -c '{command.format(1)}' >torchrun.log 2>&1 </dev/null &")
    output = ssh.read(head, command.format(0))
    until(lambda: "rank 3" in ssh.read(other, "cat torchrun.log"), "the other host's ranks do not end")
    ranks = re.findall(r"rank (\d) of 4 has \[10\.0\]", output + ssh.read(other, "cat torchrun.log"))
    assert sorted(ranks) == ["0", "1", "2", "3"]


def test_nfs_ganesha(names: tuple[str, str], ssh: Ssh) -> None:
    head, other = names
    ssh.run(other, "sudo tee /etc/ganesha/ganesha.conf", stdin=GANESHA_CONF)
    ssh.run(other, "pgrep rpcbind || sudo rpcbind")
    ssh.run(other, "sudo mkdir -p /run/ganesha && sudo ganesha.nfsd")  # systemd would make the folder
    export = f"nfs://{ssh.read(other, 'hostname -f')}/export"
    copy = f"echo over nfs >sent && nfs-cp sent '{export}/file?version=4'"
    until(lambda: ssh.run(head, copy, check=False).returncode == 0, "the export cannot be written to")
    for host in names:
        assert ssh.read(host, f"nfs-cat '{export}/file?version=4'") == "over nfs"
    assert " file" in ssh.read(head, f"nfs-ls '{export}?version=4'")
    ssh.run(other, "sudo pkill ganesha.nfsd")
