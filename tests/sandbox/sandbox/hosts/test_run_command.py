"""SSM's Run Command and EC2 Instance Connect on real hosts."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from sandbox_steps import RunningSandbox, Ssh
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef
    from mypy_boto3_ssm.type_defs import TargetTypeDef

pytestmark = pytest.mark.sandbox

DOCUMENT = "AWS-RunShellScript"


def run_on(instance_id: str, *commands: str, **parameters: list[str]) -> dict[str, Any]:
    """Runs a command on one instance, and returns GetCommandInvocation's response when it has ended."""
    ssm = boto3.client("ssm")
    sent = ssm.send_command(
        InstanceIds=[instance_id], DocumentName=DOCUMENT, Parameters={"commands": [*commands], **parameters}
    )
    where = {"CommandId": sent["Command"]["CommandId"], "InstanceId": instance_id}
    until(lambda: ssm.get_command_invocation(**where)["Status"] not in {"Pending", "InProgress"}, "it does not end")
    return {**ssm.get_command_invocation(**where)}


def test_a_command_runs_as_root_on_the_host(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    [host, _] = pair
    done = run_on(
        host["InstanceId"], "id -un; pwd", "hostname", "echo $AWS_SSM_INSTANCE_ID; echo oops >&2",
        workingDirectory=["/srv"],
    )  # fmt: skip
    name = host["PrivateDnsName"].partition(".")[0]
    assert done["StandardOutputContent"] == f"root\n/srv\n{name}\n{host['InstanceId']}\n"
    assert (done["StandardErrorContent"], done["Status"], done["ResponseCode"]) == ("oops\n", "Success", 0)
    assert "_script.sh" in ssh.read(
        host["PrivateIpAddress"], f"sudo find /var/lib/amazon/ssm -path '*{done['CommandId']}*'"
    )
    failed = run_on(host["InstanceId"], "#!/usr/bin/python3", "raise SystemExit(3)")
    assert (failed["Status"], failed["ResponseCode"]) == ("Failed", 3)
    assert failed["StandardErrorContent"] == "failed to run commands: exit status 3"
    long = run_on(host["InstanceId"], "seq 100000; nohup sleep 300 &")
    assert (long["Status"], len(long["StandardOutputContent"])) == ("Success", 24000)


def test_a_command_ends_at_its_time_limit(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    ids = [host["InstanceId"] for host in pair]
    late = run_on(ids[0], "echo begun; sleep 987; echo ended", executionTimeout=["1"])
    assert (late["Status"], late["StatusDetails"]) == ("TimedOut", "ExecutionTimedOut")
    assert late["StandardOutputContent"] == "begun\n"
    assert "sleep 987" not in ssh.read(pair[0]["PrivateIpAddress"], "ps -eo args")


def test_a_command_runs_on_instances_with_a_tag(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]") -> None:
    ssm, ids = boto3.client("ssm"), [host["InstanceId"] for host in pair]
    boto3.client("ec2").create_tags(Resources=ids, Tags=[{"Key": "Run", "Value": "both"}])
    targets: list[TargetTypeDef] = [{"Key": "tag:Run", "Values": ["both"]}]
    sent = ssm.send_command(Targets=targets, DocumentName=DOCUMENT, Parameters={"commands": ["hostname"]})["Command"]
    assert {*sent["InstanceIds"]} == {*ids}
    command = sent["CommandId"]
    until(lambda: ssm.list_commands(CommandId=command)["Commands"][0]["Status"] == "Success", "it does not end")
    listed = ssm.list_command_invocations(CommandId=command, Details=True)["CommandInvocations"]
    [first, second] = (one["CommandPlugins"][0] for one in listed)
    assert first["Name"] == second["Name"] == "aws:runShellScript"
    assert first["Output"] != second["Output"]


def test_the_managed_nodes_are_the_running_hosts(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]") -> None:
    ssm, ids = boto3.client("ssm"), {host["InstanceId"] for host in pair}
    nodes = ssm.get_paginator("describe_instance_information").paginate(
        Filters=[{"Key": "InstanceIds", "Values": [*ids, "i-0"]}]
    )
    assert {node["InstanceId"] for page in nodes for node in page["InstanceInformationList"]} == ids
    with pytest.raises(ClientError, match="InvalidInstanceId"):
        run_on("i-0123456789abcdef0", "true")
    with pytest.raises(ClientError, match="InvalidDocument"):
        ssm.send_command(InstanceIds=[*ids], DocumentName="AWS-RunPatchBaseline")


def test_instance_connects_key_logs_in_until_it_expires(
    sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh, tmp_path: Path
) -> None:
    connect, [host, _] = boto3.client("ec2-instance-connect"), pair
    new = Ssh(key=tmp_path / "key")
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(new.key)), check=True)
    asked = {"InstanceOSUser": "ubuntu", "SSHPublicKey": new.key.with_suffix(".pub").read_text()}
    address = host["PrivateIpAddress"]
    assert not new.answers(address)
    assert connect.send_ssh_public_key(InstanceId=host["InstanceId"], **asked)["Success"]
    assert new.read(address, "id -un") == "ubuntu"
    keys = "/run/ec2-instance-connect/ubuntu"
    # expiry-time="YYYYMMDDHHMMSS"
    read_left = f"""python3 -c 'import time; t = open("{keys}").read().split("\\"")[1]
print(time.mktime(time.strptime(t, "%Y%m%d%H%M%S")) - time.time())'"""
    assert 0 < float(ssh.read(address, read_left)) <= 60
    ssh.run(address, f"sudo sed -i 's/expiry-time=\"..../expiry-time=\"2025/' {keys}")  # in the place of 60 seconds
    assert not new.answers(address)
    for code, change in {
        "EC2InstanceNotFoundException": {"InstanceId": "i-0123456789abcdef0"},
        "InvalidArgsException": {"SSHPublicKey": "ssh-ed25519 " + "nothing" * 20},
    }.items():
        with pytest.raises(ClientError, match=code):
            connect.send_ssh_public_key(**{"InstanceId": host["InstanceId"], **asked, **change})
