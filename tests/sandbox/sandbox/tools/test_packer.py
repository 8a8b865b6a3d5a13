"""Packer's amazon-ebs builder, as packaged by Debian: its program and its own AWS SDK for Go."""

import json
from pathlib import Path

import boto3
import pytest

from other_tools import Tool, environment_of, unpack
from sandbox_steps import RunningSandbox, Ssh, find_image, find_live, launch, terminate_all

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

# The SDK of this release follows AWS_CA_BUNDLE but not AWS_ENDPOINT_URL.
TEMPLATE = {
    "variables": {"endpoint": "{{env `AWS_ENDPOINT_URL`}}", "image": ""},
    "builders": [
        {
            "type": "amazon-ebs",
            "region": "us-east-1",
            "custom_endpoint_ec2": "{{user `endpoint`}}",
            "source_ami": "{{user `image`}}",
            "instance_type": "t3.micro",
            "ssh_username": "ubuntu",
            "ami_name": "by-packer",
            "tags": {"made-by": "packer"},
        }
    ],
    "provisioners": [{"type": "shell", "inline": ["echo baked by $(id -un) | sudo tee /etc/baked"]}],
}


def test_packer_bakes_an_image(sandbox: RunningSandbox, ssh: Ssh, tmp_path: Path) -> None:
    """An instance of the image has the file that Packer's provisioner wrote over ssh."""
    ec2 = boto3.client("ec2")
    groups, keys = ec2.describe_security_groups()["SecurityGroups"], ec2.describe_key_pairs()["KeyPairs"]
    before = find_live(ec2)
    programs = unpack(tmp_path / "debian", "packer")
    (tmp_path / "image.json").write_text(json.dumps(TEMPLATE))
    env = environment_of(sandbox.project_dir, home=tmp_path) | {"CHECKPOINT_DISABLE": "1"}
    packer = Tool(program=str(programs / "packer"), env=env, directory=tmp_path)
    output = packer.run("build", "-color=false", "-var", f"image={find_image()}", "image.json", timeout_s=600)
    [image] = ec2.describe_images(Owners=["self"], Filters=[{"Name": "tag:made-by", "Values": ["packer"]}])["Images"]
    assert f"us-east-1: {image['ImageId']}" in output
    assert image["Name"] == "by-packer"
    assert find_live(ec2) == before
    assert ec2.describe_security_groups()["SecurityGroups"] == groups
    assert ec2.describe_key_pairs()["KeyPairs"] == keys
    try:
        [instance] = launch(ssh, 1, ImageId=image["ImageId"])
        assert ssh.read(instance["PublicIpAddress"], "cat /etc/baked") == "baked by ubuntu"
    finally:
        terminate_all(ec2)
        ec2.deregister_image(ImageId=image["ImageId"])
        for mapping in image["BlockDeviceMappings"]:
            ec2.delete_snapshot(SnapshotId=mapping["Ebs"]["SnapshotId"])
