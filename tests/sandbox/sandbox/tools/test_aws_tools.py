"""aws-cli, which follows the environment to the sandbox."""

from pathlib import Path

import pytest

from other_tools import Tool, environment_of, install, own_address
from sandbox_steps import UBUNTU, RunningSandbox

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_aws_cli_typed_by_hand(sandbox: RunningSandbox, tmp_path: Path) -> None:
    env = environment_of(sandbox.project_dir, home=tmp_path, programs=install(tmp_path / "venv", "awscli>=1.40"))
    typed = {"PARAMETER": UBUNTU, "OWN_ADDRESS": own_address(env), "AWS_DEFAULT_OUTPUT": "text"}
    printed = Tool(program="bash", env=env | typed, directory=tmp_path).run("-c", TYPED, timeout_s=300)
    assert printed == PRINTED
