"""`with Sandbox() as s:`, as a program outside this project uses it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox import Host, Sandbox, control, fault
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.paths import paths_of
from ec2_sandbox.pytest_plugin import OneSandbox
from sandbox_steps import UBUNTU, find_leftovers
from waits import until

pytestmark = pytest.mark.sandbox
FAULTS = ("throttle action=DescribeHosts count=7",)


@pytest.fixture(scope="module")
def running() -> Iterator[Sandbox]:
    with Sandbox(faults=FAULTS) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running: Sandbox) -> Sandbox:
    running.clear()
    return running


def launch(sandbox: Sandbox, **options: Any) -> Host:
    image = sandbox.client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    asked = {"ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1, **options}
    [instance] = sandbox.client("ec2").run_instances(**asked)["Instances"]
    until(lambda: sandbox.hosts[instance["InstanceId"]].state == "running", "the instance does not run")
    return sandbox.hosts[instance["InstanceId"]]


IDS = re.compile(r"-[0-9a-f]{8,17}\b|datetime\([^)]*\)|'UserId': '\w+'")
DESCRIBED = ("instances", "images", "subnets", "security_groups", "key_pairs", "volumes", "addresses",
             "network_interfaces", "placement_groups", "launch_templates", "tags")  # fmt: skip


def describe(sandbox: Sandbox) -> dict[str, str]:
    """What a test can see of the state, without the ids and times, which are new after each start."""
    ec2, iam, s3, ssm, sts = map(sandbox.client, ("ec2", "iam", "s3", "ssm", "sts"))
    found: dict[str, Any] = {name: getattr(ec2, f"describe_{name}")() for name in DESCRIBED}
    found |= {
        "parameters": [*ssm.get_paginator("describe_parameters").paginate().search("Parameters[].Name")],
        "buckets": s3.list_buckets(), "users": iam.list_users(), "roles": iam.list_roles(),
        "keys": iam.list_access_keys(), "caller": sts.get_caller_identity(),
        "faults": sandbox.faults.list(), "hosts": sandbox.hosts,
    }  # fmt: skip
    for answer in found.values():
        if isinstance(answer, dict):
            answer.pop("ResponseMetadata", None)
    return {name: IDS.sub("", repr(answer)) for name, answer in found.items()}


def change_everything(sandbox: Sandbox) -> dict[str, Any]:
    """Makes something of each kind, and returns a user's session."""
    ec2, s3, iam = sandbox.client("ec2"), sandbox.client("s3"), sandbox.client("iam")
    [vpc] = ec2.describe_vpcs()["Vpcs"]
    ec2.create_key_pair(KeyName="key")
    ec2.create_security_group(GroupName="group", Description="-", VpcId=vpc["VpcId"])
    ec2.create_tags(Resources=[vpc["VpcId"]], Tags=[{"Key": "a", "Value": "b"}])
    ec2.create_placement_group(GroupName="place", Strategy="cluster")
    ec2.create_launch_template(LaunchTemplateName="form", LaunchTemplateData={"InstanceType": "t3.micro"})
    ec2.allocate_address()
    host = launch(sandbox, ClientToken="once")
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    until(lambda: ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"] == "available", "no volume")
    ec2.attach_volume(VolumeId=volume, InstanceId=host.instance_id, Device="/dev/sdf")
    attached = {"Name": "attachment.status", "Values": ["attached"]}
    until(lambda: ec2.describe_volumes(VolumeIds=[volume], Filters=[attached])["Volumes"], "the host has no disk")
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="key", Body=b"-" * 1000)
    s3.create_multipart_upload(Bucket="bucket", Key="begun")
    iam.create_user(UserName="somebody")
    iam.create_role(RoleName="role", AssumeRolePolicyDocument='{"Statement": []}')
    sandbox.client("ssm").put_parameter(Name="/own", Value="1", Type="String")
    sandbox.faults.remove()
    sandbox.faults.add(fault("capacity", zone="us-east-1b", free=3))
    keys: dict[str, Any] = sandbox.client("sts").get_session_token()["Credentials"]
    return keys


def test_clear_is_a_start(sandbox: Sandbox) -> None:
    sandbox.stop()  # the module's other tests have used it
    sandbox.start()
    fresh = describe(sandbox)
    session = change_everything(sandbox)
    changed = describe(sandbox)
    # A caller's own keys and identity do not change.
    assert {name for name in fresh if fresh[name] == changed[name]} == {"images", "keys", "caller"}
    [host] = sandbox.hosts.values()
    sandbox.clear()
    again = describe(sandbox)
    assert {name: (fresh[name], again[name]) for name in fresh if fresh[name] != again[name]} == {}
    assert not Path(f"/proc/{host.pid}").exists()
    assert not list(paths_of(sandbox._home).hosts_dir.iterdir())
    refused = sandbox.client("ec2", aws_access_key_id=session["AccessKeyId"], aws_session_token=session["SessionToken"],
                             aws_secret_access_key=session["SecretAccessKey"])  # fmt: skip
    with pytest.raises(Exception, match="AuthFailure"):
        refused.describe_vpcs()
    other = launch(sandbox, ClientToken="once")
    assert (other.instance_id != host.instance_id, other.private_ip) == (True, host.private_ip)
    assert "ssh" in other.run("ss", "-ltn").stdout or other.run("pgrep", "sshd").stdout


def test_hosts(sandbox: Sandbox) -> None:
    host = launch(sandbox)
    assert host.run("sh", "-c", "id -u; hostname; pwd; ls -d .overlay; cat", stdin="in").stdout.split() == [
        "0", f"ip-{str(host.private_ip).replace('.', '-')}", "/", ".overlay", "in",
    ]  # fmt: skip
    assert host.run("false", check=False).returncode == 1
    with pytest.raises(subprocess.CalledProcessError, match="'ls', '/none'") as failed:
        host.run("ls", "/none")
    assert "No such file" in "".join(failed.value.__notes__)
    assert f"{host.instance_id}: booting" in host.console()
    with pytest.raises(KeyError):
        sandbox.hosts["i-0"]


def test_a_traceback_has_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ec2_sandbox.rootless.is_ordinary_user", lambda: True)
    with pytest.raises(SandboxError, match="outside the namespaces") as failed:
        Sandbox().start()
    assert failed.value.__notes__[0].startswith("try: ec2-sandbox shell -- ")


def test_faults(sandbox: Sandbox) -> None:
    [configured] = sandbox.faults.list()
    armed = sandbox.faults.add(fault("throttle", action="RunInst*", count=1))
    assert sandbox.faults.list() == (configured, armed)
    sandbox.faults.remove(configured.id)
    assert sandbox.faults.list() == (armed,)
    sandbox.faults.remove()
    host = launch(sandbox)
    sandbox.faults.add(f"kill instance={host.instance_id}")
    assert not Path(f"/proc/{host.pid}").exists()
    with pytest.raises(SandboxError, match="did you mean"):
        sandbox.faults.add("capacitie")
    with pytest.raises(SandboxError, match="unknown instance i-1"):
        sandbox.faults.add(fault("freeze", instance="i-1"))


# -- the end ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import time
from ec2_sandbox import Sandbox
with Sandbox(hosts="none") as sandbox:
    print(sandbox._home, flush=True)
    time.sleep(600)
"""


def start_program() -> "tuple[subprocess.Popen[str], Path]":
    program = subprocess.Popen(
        (sys.executable, "-c", PROGRAM), stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert program.stdout is not None
    return program, Path(program.stdout.readline().strip())


def test_ctrl_c_removes_it() -> None:
    program, folder = start_program()
    program.send_signal(signal.SIGINT)
    assert program.wait(60) != 0
    assert not find_leftovers(folder)
    assert not folder.exists()


def test_it_ends_with_a_killed_program() -> None:
    program, folder = start_program()
    program.kill()
    program.wait(60)
    until(lambda: not find_leftovers(folder) and not folder.exists(), "the sandbox of a killed program stays")


def test_the_fixture_begins_anew_after_a_crash() -> None:
    one, settings = OneSandbox(), {"hosts": "none"}
    try:
        os.kill(one.prepare(settings).pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="has crashed"):
            one.prepare(settings)
        assert one.prepare(settings).client("ec2").describe_vpcs()["Vpcs"]
    finally:
        one.stop()


def test_a_folder_has_one_sandbox(tmp_path: Path) -> None:
    with Sandbox(tmp_path, hosts="none", region="eu-west-1") as sandbox:
        assert sandbox.client("ec2").describe_regions()["Regions"][0]["RegionName"] == sandbox.region == "eu-west-1"
        with pytest.raises(SandboxError, match="already has a sandbox"):
            Sandbox(tmp_path).start()
        assert control.find_running(tmp_path)
    assert tmp_path.exists()
    with pytest.raises(SandboxError, match=r"has not been started|does not run"):
        _ = sandbox.endpoint_url
