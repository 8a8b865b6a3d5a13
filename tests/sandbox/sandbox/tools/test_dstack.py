"""dstack's AWS backend, as installed from PyPI, until the instance would download dstack-shim from the Internet."""

import zipfile
from pathlib import Path

import boto3
import pytest

from ec2_sandbox import control
from foundation.progress import silent
from other_tools import Tool, environment_of, install
from sandbox_steps import RunningSandbox, Ssh, find_live, wait_for
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

# dstack downloads its catalogue of instance types and prices from GPUHUNT_CATALOG_URL.
CATALOG = """\
instance_name,location,price,cpu,memory,gpu_vendor,gpu_count,gpu_name,gpu_memory,spot,disk_size
g4dn.xlarge,us-east-1,0.526,4,16,nvidia,1,T4,16,False,
"""
BACKEND = """
import sys
from dstack._internal.core.backends.aws.compute import AWSCompute
from dstack._internal.core.backends.aws.models import AWSConfig, AWSDefaultCreds

compute = AWSCompute(AWSConfig(regions=["us-east-1"], creds=AWSDefaultCreds()))
"""
CREATE = f"""{BACKEND}
from dstack._internal.core.models.instances import InstanceConfiguration, SSHKey

[offer] = compute.get_all_offers_with_availability(False)
keys = [SSHKey(public=sys.argv[1])]
wanted = InstanceConfiguration(project_name="main", instance_name="one", user="admin", ssh_keys=keys)
made = compute.create_instance(offer, wanted, None)
compute.update_provisioning_data(made, "", "")
print("made:", made.instance_id, made.username, made.hostname)
"""
TERMINATE = f"""{BACKEND}
compute.terminate_instance(sys.argv[1], "us-east-1")
"""


@pytest.fixture
def python(sandbox: RunningSandbox, tmp_path: Path) -> Tool:
    """Python with dstack, and a catalogue with one instance type."""
    programs = install(tmp_path / "venv", "dstack[aws,server]==0.22.5")
    (tmp_path / "aws/1").mkdir(parents=True)
    (tmp_path / "aws/version").write_text("1")
    with zipfile.ZipFile(tmp_path / "aws/1/catalog.zip", "w") as catalog:
        catalog.writestr("aws.csv", CATALOG)
    env = environment_of(sandbox.project_dir, home=tmp_path) | {"GPUHUNT_CATALOG_URL": tmp_path.as_uri()}
    return Tool(program=str(programs / "python"), env=env, directory=tmp_path)


def test_dstack_until_it_needs_the_internet(sandbox: RunningSandbox, python: Tool, ssh: Ssh) -> None:
    """Its cloud-config adds the keys, sets up the firewall with ufw, and downloads dstack-shim, which fails."""
    control.install(sandbox.project_dir, ("cloud-init", "ufw"), report=silent)
    ec2 = boto3.client("ec2")
    output = python.run("-c", CREATE, ssh.key.with_suffix(".pub").read_text(), timeout_s=300)
    _, instance_id, user, address = output.splitlines()[-1].split()
    until(lambda: ssh.run(address, "test -e /run/cloud-init/result.json", check=False).returncode == 0,
          "cloud-init does not end", timeout_s=300)  # fmt: skip
    assert user == "ubuntu"
    assert "Status: active" in ssh.read(address, "sudo ufw status")
    log = ssh.read(address, "cat /var/log/cloud-init-output.log")
    assert "Could not resolve host: dstack-runner-downloads.s3.eu-west-1.amazonaws.com" in log
    python.run("-c", TERMINATE, instance_id)
    wait_for(ec2, "instance_terminated", [instance_id])
    assert not find_live(ec2)
