"""What tools that nobody here wrote rely on: aws-cli, and the things that cluster launchers look at in a host."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from sandbox_steps import RunningSandbox, Ssh, find_image, launch

pytestmark = pytest.mark.sandbox

AWS = shutil.which("aws", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def test_a_login_has_a_name_and_the_machines_disks_are_not_its_to_format(sandbox: RunningSandbox, ssh: Ssh) -> None:
    [instance] = launch(ssh, 1)
    address = instance["PublicIpAddress"]
    assert ssh.read(address, "logname") == "ubuntu"
    assert ssh.read(address, "lsblk --noheadings; ls /sys/block /sys/class/block | grep -v :") == ""
    boto3.client("ec2").terminate_instances(InstanceIds=[instance["InstanceId"]])


@pytest.mark.skipif(AWS is None, reason="needs aws-cli: pip install awscli")
def test_aws_cli(sandbox: RunningSandbox, ssh: Ssh, tmp_path: Path) -> None:
    def aws(*words: str) -> str:
        done = subprocess.run(
            [str(AWS), "--output", "json", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    aws("ec2", "import-key-pair", "--key-name", "cli", "--public-key-material", f"fileb://{ssh.key}.pub")
    launched = json.loads(
        aws("ec2", "run-instances", "--image-id", find_image(), "--instance-type", "t3.micro", "--key-name", "cli")
    )["Instances"]
    instance_id = launched[0]["InstanceId"]
    aws("ec2", "wait", "instance-running", "--instance-ids", instance_id)
    described = json.loads(aws("ec2", "describe-instances", "--instance-ids", instance_id))
    address = described["Reservations"][0]["Instances"][0]["PrivateIpAddress"]
    assert "SSH HOST KEY FINGERPRINTS" in aws("ec2", "get-console-output", "--instance-id", instance_id)
    assert ssh.read(address, "hostname") == "ip-" + address.replace(".", "-")
    aws("ec2", "terminate-instances", "--instance-ids", instance_id)
    aws("ec2", "wait", "instance-terminated", "--instance-ids", instance_id)
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(20_000_000))
    aws("s3", "mb", "s3://of-aws-cli")
    aws("s3", "cp", str(sent), "s3://of-aws-cli/key", "--no-progress")
    aws("s3", "cp", "s3://of-aws-cli/key", str(back), "--no-progress")
    assert back.read_bytes() == sent.read_bytes()
    aws("s3", "rb", "s3://of-aws-cli", "--force")
