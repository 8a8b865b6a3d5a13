"""dask-cloudprovider's EC2Cluster, as installed from PyPI, on hosts whose `docker` is podman."""

import tempfile
from pathlib import Path

import pytest

from ec2_sandbox import control
from foundation.progress import silent
from other_tools import Tool, environment_of, install
from sandbox_steps import RunningSandbox, find_image

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

# The container's image is the host's own system, because no image can be pulled. The group is given, because
# EC2Cluster 2025.9.0 fails to create its own (create_default_security_group() lacks its argument `tags`).
CLUSTER = r"""
import socket, sys
import botocore.session
from dask.distributed import Client
from dask_cloudprovider.aws import EC2Cluster

image, programs = sys.argv[1:]
STORAGE = r'[storage]\ndriver = "vfs"\nrunroot = "/run/c"\ngraphroot = "/var/lib/c"\n'
PREPARE = [
    "mkdir -p /run/full/proc /run/full/sys /srv/image /etc/containers",
    "mount -t proc proc /run/full/proc",
    "mount -t sysfs sysfs /run/full/sys",
    "mount --rbind / /srv/image",
    f"printf '{STORAGE}' >/etc/containers/storage.conf",
    "touch /run/.containerenv",
    "ln -sf /usr/bin/podman /usr/local/bin/docker",
]
if __name__ == "__main__":
    ec2 = botocore.session.get_session().create_client("ec2")
    group = ec2.create_security_group(GroupName="dask", Description="for a test")["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[
        {"IpProtocol": "tcp", "FromPort": 8786, "ToPort": 8787, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}])
    with EC2Cluster(ami=image, region="us-east-1", instance_type="m5.large", n_workers=1, bootstrap=False,
                    use_private_ip=True, security_groups=[group], docker_image="/srv/image", extra_bootstrap=PREPARE,
                    docker_args="--uidmap 0:100000:65536 --cgroups=disabled --ulimit host --rootfs",
                    env_vars={"PATH": f"{programs}:/usr/bin:/bin"}) as cluster, Client(cluster) as client:
        print("elsewhere:", client.submit(socket.gethostname).result(timeout=300) != socket.gethostname())
        print("sum:", client.submit(sum, range(10)).result(timeout=60))
"""


def test_a_computation_on_an_ec2_cluster(sandbox: RunningSandbox, tmp_path: Path) -> None:
    control.install(sandbox.project_dir, ("cloud-init", "podman", "crun"), report=silent)
    with tempfile.TemporaryDirectory(prefix="cluster-test-", dir="/opt") as seen_by_hosts:
        Path(seen_by_hosts).chmod(0o755)
        venv = Path(seen_by_hosts) / "venv"
        wanted = ("dask-cloudprovider[aws]==2025.9.0", "cryptography")
        programs = install(venv, *wanted, python="/usr/bin/python3")
        env = environment_of(sandbox.project_dir, home=tmp_path)
        (tmp_path / "computation.py").write_text(CLUSTER)
        python = Tool(program=str(programs / "python"), env=env, directory=tmp_path)
        output = python.run("computation.py", find_image(), str(programs), timeout_s=600)
    assert "elsewhere: True\nsum: 45\n" in output
