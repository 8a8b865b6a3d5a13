"""Steps that the tests against a sandbox share."""

import functools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from bootstrap.ssh.host import quote_path
from ec2_sandbox import control, paths
from ec2_sandbox.config import FolderSettings
from foundation.progress import silent
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

REGION = "us-east-1"
UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
LIVE_STATES = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSandbox:
    """A running sandbox; `environment` points AWS clients at it, in this process and in child processes."""

    project_dir: Path
    info: control.SandboxInfo
    environment: dict[str, str]


def start_sandbox(project_dir: Path, **config: Any) -> RunningSandbox:
    info = control.start(project_dir, FolderSettings(**config), report=silent)
    return RunningSandbox(project_dir=project_dir, info=info, environment=control.environment(info))


@contextmanager
def sandbox_in(project_dir: Path, **config: Any) -> Iterator[RunningSandbox]:
    """Starts a sandbox; at the end of the block it is removed, and nothing of it may be left."""
    try:
        yield start_sandbox(project_dir, **config)
    finally:
        control.reset(project_dir, report=silent)
        assert not find_leftovers(project_dir)


def enter(sandbox: RunningSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points AWS clients at a sandbox, including boto3.client, which would keep the credentials of an earlier one."""
    for name in control.unset_environment(os.environ):
        monkeypatch.delenv(name)
    for name, value in sandbox.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


def find_leftovers(project_dir: Path) -> paths.Leftovers:
    return paths.find_leftovers(paths.paths_of(project_dir))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """The ssh client with one key, without checking host keys."""

    key: Path

    def run(
        self, address: str, command: str, *, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._words(address, command),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def read(self, address: str, command: str) -> str:
        return self.run(address, command).stdout.strip()

    def answers(self, address: str) -> bool:
        return self.run(address, "true", check=False).returncode == 0

    def _words(self, address: str, command: str) -> tuple[str, ...]:
        # The tests log in hundreds of times; this key exchange takes much less CPU time than ssh's own choice.
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=5",
                   "IdentitiesOnly=yes", "BatchMode=yes", "KexAlgorithms=curve25519-sha256")  # fmt: skip
        words = [word for option in options for word in ("-o", option)]
        target = address if "@" in address else f"ubuntu@{address}"
        return ("ssh", "-F", "none", *words, "-o", f"IdentityFile={quote_path(self.key)}", target, command)


def launch(
    ssh: Ssh, count: int, key_name: str = "test", *, timeout_s: float = 60.0, **options: Any
) -> "list[InstanceTypeDef]":
    """Launches instances for `ssh` to log in to, and waits until they run. options: parameters of RunInstances."""
    ec2 = boto3.client("ec2")
    if key_name not in {key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]}:
        ec2.import_key_pair(KeyName=key_name, PublicKeyMaterial=ssh.key.with_suffix(".pub").read_bytes())
    open_ssh(ec2)
    asked = {"ImageId": find_image(), "InstanceType": "g4dn.xlarge", "KeyName": key_name, **options}
    reservation = ec2.run_instances(MinCount=count, MaxCount=count, **asked)
    ids = [instance["InstanceId"] for instance in reservation["Instances"]]
    wait_for(ec2, "instance_running", ids, timeout_s=timeout_s)
    return describe(ec2, ids)


def open_ssh(ec2: "EC2Client") -> str:
    """Opens port 22 of the default group for everybody; returns the group's id."""
    [group] = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    if not any(rule.get("FromPort") == 22 for rule in group["IpPermissions"]):
        open_ports(ec2, range(22, 23), "0.0.0.0/0")
    return group["GroupId"]


def open_ports(ec2: "EC2Client", ports: range, cidr: str) -> None:
    """Opens ports of the default group."""
    [group] = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    ec2.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpProtocol="tcp", FromPort=ports[0], ToPort=ports[-1], CidrIp=cidr
    )


@functools.cache
def find_image() -> str:
    """The id of Ubuntu's image, which is the same in every sandbox."""
    return boto3.client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]


def wait_for(ec2: "EC2Client", what: str, ids: list[str], *, timeout_s: float = 60.0) -> None:
    """Waits until all instances are in a state. what: instance_STATE.

    botocore's own waiter for the end fails for an instance that is still pending.
    """
    state = what.removeprefix("instance_")
    hopeless = {"terminated", "stopped"} if state == "running" else set()

    def arrived() -> bool:
        seen = {instance["State"]["Name"] for instance in describe(ec2, ids)}
        assert not seen & hopeless, seen
        return seen == {state}

    until(arrived, f"{ids} not {state}", timeout_s=timeout_s)


def describe(ec2: "EC2Client", ids: list[str]) -> "list[InstanceTypeDef]":
    reservations = ec2.describe_instances(InstanceIds=ids)["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def state_of(ec2: "EC2Client", instance_id: str) -> str:
    return describe(ec2, [instance_id])[0]["State"]["Name"]


def answers(address: str, port: int = 22, *, timeout_s: float = 1.0) -> bool:
    """Whether something listens at a port."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def terminate_all(ec2: "EC2Client") -> None:
    """Terminates all instances, and waits until they are."""
    if ids := [*find_live(ec2)]:
        ec2.terminate_instances(InstanceIds=ids)
        wait_for(ec2, "instance_terminated", ids)


def find_live(ec2: "EC2Client", states: tuple[str, ...] = (*LIVE_STATES, "shutting-down")) -> set[str]:
    """The ids of all instances in these states, by default of all that are not terminated."""
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "instance-state-name", "Values": states}]
    )
    return set(pages.search("Reservations[].Instances[].InstanceId"))
