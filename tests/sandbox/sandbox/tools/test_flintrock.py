"""Flintrock, a launcher of Spark clusters, as installed from PyPI.

https://github.com/nchammas/flintrock
"""

from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from other_tools import Tool, environment_of, install, own_address
from sandbox_steps import RunningSandbox, Ssh

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]

AMAZON_LINUX = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"

# What Flintrock expects of an image, and what it would download from the Internet. A boothook runs before sshd:
# Flintrock does not wait for other user data.
FLINTROCK_NEEDS_NOTHING = r"""#cloud-boothook
#!/bin/sh
ln -sf /usr/bin/python3 /usr/local/bin/python
printf '#!/bin/sh\n' > /usr/local/bin/yum
printf '#!/bin/sh\necho openjdk version 11.0.20\n' > /usr/local/bin/java
chmod +x /usr/local/bin/yum /usr/local/bin/java
"""
FLINTROCK_CONFIG = """\
provider: ec2
providers:
  ec2:
    key-name: flintrock
    identity-file: {identity_file}
    instance-type: c5.large
    region: us-east-1
    ami: {ami}
    user: ubuntu
    placement-group: flintrock
    min-root-ebs-size-gb: 100
    tenancy: default
    ebs-optimized: no
    instance-initiated-shutdown-behavior: terminate
    authorize-access-from: [{own_address}]
launch:
  num-slaves: 2
  install-hdfs: False
  install-spark: False
"""


@pytest.fixture
def ec2(sandbox: RunningSandbox) -> "EC2Client":
    return boto3.client("ec2")


@pytest.fixture
def flintrock(sandbox: RunningSandbox, ec2: "EC2Client", ssh: Ssh, tmp_path: Path) -> Tool:
    """Flintrock with its config file, and the resources that this file names."""
    programs = install(tmp_path / "venv", "flintrock==2.1.0")
    env = environment_of(sandbox.project_dir, home=tmp_path)
    ami = boto3.client("ssm").get_parameter(Name=AMAZON_LINUX)["Parameter"]["Value"]
    config = FLINTROCK_CONFIG.format(identity_file=ssh.key, ami=ami, own_address=own_address(env))
    (tmp_path / "config.yaml").write_text(config)
    ec2.import_key_pair(KeyName="flintrock", PublicKeyMaterial=ssh.key.with_suffix(".pub").read_bytes())
    ec2.create_placement_group(GroupName="flintrock", Strategy="cluster")
    return Tool(
        program=str(programs / "flintrock"),
        words=("--config", "config.yaml"),
        env={**env, "PYTHONWARNINGS": "ignore"},
        directory=tmp_path,
    )


def of_flintrock(ec2: "EC2Client") -> "list[InstanceTypeDef]":
    """Flintrock's instances that are not terminated, the leading one first."""
    answer = ec2.describe_instances(
        Filters=[{"Name": "tag-key", "Values": ["flintrock-name"]},
                 {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    )  # fmt: skip
    return sorted((i for r in answer["Reservations"] for i in r["Instances"]), key=lambda i: tags_of(i)["Name"])


def tags_of(instance: "InstanceTypeDef") -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def flintrock_groups(ec2: "EC2Client") -> set[str]:
    groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["flintrock*"]}])
    return {group["GroupName"] for group in groups["SecurityGroups"]}


def test_all_of_flintrock_with_an_image_that_has_what_it_needs(flintrock: Tool, ec2: "EC2Client", ssh: Ssh) -> None:
    (flintrock.directory / "user-data").write_text(FLINTROCK_NEEDS_NOTHING)
    output = flintrock.run("launch", "some", "--ec2-user-data", "user-data", "--assume-yes")
    assert "Login with: flintrock login some" in output
    for instance in of_flintrock(ec2):
        assert {group["GroupName"] for group in instance["SecurityGroups"]} == {"flintrock", "flintrock-some"}
        assert instance["Placement"]["GroupName"] == "flintrock"
    flintrock.run("run-command", "some", "--", "hostname > name")
    flintrock.run("copy-file", "some", "user-data", "/home/ubuntu/copied")
    flintrock.run("add-slaves", "some", "--num-slaves", "1", "--assume-yes")
    before = of_flintrock(ec2)
    assert [ssh.read(i["PublicIpAddress"], "cat name copied 2> /dev/null | wc -l") for i in before].count("0") == 1
    flintrock.run("stop", "some", "--assume-yes")
    assert flintrock.run("describe", "some") == "some:\n  state: stopped\n  node-count: 4\n"
    flintrock.run("start", "some")
    after = of_flintrock(ec2)
    assert [i["PrivateIpAddress"] for i in after] == [i["PrivateIpAddress"] for i in before]
    assert not {i["PublicIpAddress"] for i in after} & {i["PublicIpAddress"] for i in before}
    [first, *_] = after
    assert ssh.read(first["PublicIpAddress"], "cat name") == ssh.read(first["PrivateIpAddress"], "hostname")
    flintrock.run("remove-slaves", "some", "--num-slaves", "2", "--assume-yes")
    assert [tags_of(i)["Name"] for i in of_flintrock(ec2)] == ["some-master", "some-slave"]
    flintrock.run("destroy", "some", "--assume-yes")
    assert not of_flintrock(ec2)
    assert flintrock_groups(ec2) == {"flintrock"}
