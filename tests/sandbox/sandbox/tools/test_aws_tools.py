"""botocore and aws-cli, which follow the environment to the sandbox."""

from pathlib import Path
from typing import Any

import botocore.session
import pytest

from other_tools import Tool, environment_of, install, own_address
from sandbox_steps import UBUNTU, RunningSandbox, Ssh, wait_for

pytestmark = pytest.mark.sandbox

# As typed by a reader of docs/sandbox.md and an AWS tutorial.
TYPED = r"""
set -euo pipefail
aws ec2 create-key-pair --key-name typed --key-type ed25519 --query KeyMaterial --output text > key.pem
chmod 600 key.pem
image=$(aws ssm get-parameter --name $PARAMETER --query Parameter.Value --output text)
group=$(aws ec2 create-security-group --group-name typed --description "for a test" --query GroupId --output text)
aws ec2 authorize-security-group-ingress --group-id $group --protocol tcp --port 22 --cidr $OWN_ADDRESS/32 > /dev/null
ids=$(aws ec2 run-instances --image-id $image --count 2 --instance-type t3.micro --key-name typed \
  --security-group-ids $group --tag-specifications 'ResourceType=instance,Tags=[{Key=Name,Value=typed}]' \
  --user-data $'#!/bin/sh\necho hello from user data' --query 'Instances[].InstanceId' --output text)
aws ec2 wait instance-running --instance-ids $ids
aws ec2 wait instance-status-ok --instance-ids $ids
aws ec2 describe-instances --filters Name=tag:Name,Values=typed Name=instance-state-name,Values=running \
  --query 'Reservations[].Instances[].[InstanceId,PublicIpAddress]' --output text > running
while read -r id address; do
  ssh-keyscan -t ed25519 $address > known 2> /dev/null
  ssh -n -F none -i key.pem -o UserKnownHostsFile=known -o StrictHostKeyChecking=yes ubuntu@$address \
    'cloud-init status --wait > /dev/null && echo "$(id -un) is logged in"'
  until aws ec2 get-console-output --instance-id $id --latest --output text > console
    grep --quiet 'hello from user data' console; do sleep 1; done
  grep --fixed-strings "$(ssh-keygen -l -f known | cut -d ' ' -f 2)" console | sed 's/.*(\(.*\))/known by its \1 key/'
  grep --only-matching 'hello from user data' console
done < running
head --bytes=20000000 /dev/urandom > sent
aws s3 mb s3://typed
aws s3 cp sent s3://typed/folder/key --no-progress
aws s3 ls --recursive s3://typed | tr --squeeze-repeats ' ' | cut -d ' ' -f 3-
aws s3 cp s3://typed/folder/key received --no-progress
cmp sent received
aws s3 rb s3://typed --force
aws ec2 terminate-instances --instance-ids $ids --query 'TerminatingInstances[].CurrentState.Name' --output text
aws ec2 wait instance-terminated --instance-ids $ids
aws ec2 delete-security-group --group-id $group > /dev/null
aws ec2 delete-key-pair --key-name typed > /dev/null
echo the end
"""
PRINTED = """\
ubuntu is logged in
known by its ED25519 key
hello from user data
ubuntu is logged in
known by its ED25519 key
hello from user data
make_bucket: typed
upload: ./sent to s3://typed/folder/key
20000000 folder/key
download: s3://typed/folder/key to ./received
delete: s3://typed/folder/key
remove_bucket: typed
shutting-down\tshutting-down
the end
"""


@pytest.fixture(scope="session")
def aws_cli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("aws-cli"), "awscli>=1.40")


def test_botocore_follows_the_environment(
    sandbox: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(sandbox.project_dir, home=tmp_path).items():
        monkeypatch.setenv(name, value)
    session = botocore.session.get_session()
    clients: list[Any] = [session.create_client(service) for service in ("ec2", "s3", "ssm")]
    ec2, s3, ssm = clients
    key = tmp_path / "key.pem"
    key.write_text(ec2.create_key_pair(KeyName="plain", KeyType="ed25519")["KeyMaterial"])
    key.chmod(0o600)
    group_id = ec2.create_security_group(GroupName="plain", Description="for a test")["GroupId"]
    own = f"{own_address(sandbox.environment)}/32"
    ec2.authorize_security_group_ingress(GroupId=group_id, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp=own)
    image_id = ssm.get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    launched = ec2.run_instances(
        ImageId=image_id, InstanceType="t3.micro", MinCount=1, MaxCount=1, KeyName="plain", SecurityGroupIds=[group_id]
    )
    ids = [instance["InstanceId"] for instance in launched["Instances"]]
    for waiter in ("instance_exists", "instance_running", "system_status_ok", "instance_status_ok"):
        ec2.get_waiter(waiter).wait(InstanceIds=ids, WaiterConfig={"Delay": 0.2, "MaxAttempts": 300})
    [instance] = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"]
    console = ec2.get_console_output(InstanceId=ids[0], Latest=True)["Output"]
    seen = Ssh(key=key).read(instance["PublicIpAddress"], "id -un; cat /etc/ssh/ssh_host_ed25519_key.pub")
    user, host_key = seen.splitlines()
    assert user == "ubuntu"
    assert host_key in console
    ec2.terminate_instances(InstanceIds=ids)
    wait_for(ec2, "instance_terminated", ids)
    ec2.delete_security_group(GroupId=group_id)
    ec2.delete_key_pair(KeyName="plain")
    s3.create_bucket(Bucket="plain")
    s3.put_object(Bucket="plain", Key="a/b", Body=b"\x00\xff")
    assert s3.get_object(Bucket="plain", Key="a/b")["Body"].read() == b"\x00\xff"
    s3.delete_object(Bucket="plain", Key="a/b")
    s3.delete_bucket(Bucket="plain")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_aws_cli_typed_by_hand(sandbox: RunningSandbox, aws_cli: Path, tmp_path: Path) -> None:
    env = environment_of(sandbox.project_dir, home=tmp_path, programs=aws_cli)
    typed = {"PARAMETER": UBUNTU, "OWN_ADDRESS": own_address(env), "AWS_DEFAULT_OUTPUT": "text"}
    printed = Tool(program="bash", env=env | typed, directory=tmp_path).run("-c", TYPED, timeout_s=300)
    assert printed == PRINTED
