"""The sandbox on which all launchers run: counts its API calls, lists its resources and removes leftovers."""

import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import ClientError

from ec2_sandbox import control
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.paths import CHECKIP_PATH
from foundation.progress import silent

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

REGION = "us-east-1"
ZONE = "us-east-1a"
INSTANCE_TYPE: Final = "c5.large"
IMAGE = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
KEY_NAME = ROLE_NAME = "bench"
TIMEOUT_S = 120.0
READING = ("Describe", "Get", "List", "Head", "Lookup")
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}

Inventory = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """API calls by action. `mutating` and `reading` do not include `dry_runs`."""

    mutating: Counter[str]
    reading: Counter[str]
    dry_runs: Counter[str]

    def __add__(self, other: "Calls") -> "Calls":
        return Calls(
            mutating=self.mutating + other.mutating,
            reading=self.reading + other.reading,
            dry_runs=self.dry_runs + other.dry_runs,
        )


def count_calls(lines: list[str]) -> Calls:
    """Counts the calls in lines of the API log. Refused and repeated calls count, too."""
    calls = Calls(mutating=Counter(), reading=Counter(), dry_runs=Counter())
    for line in lines:
        entry = json.loads(line)
        if entry["service"] is None:
            continue  # checkip is not an AWS API
        if entry["dry_run"]:
            calls.dry_runs[entry["action"]] += 1
        elif entry["action"].startswith(READING):
            calls.reading[entry["action"]] += 1
        else:
            calls.mutating[entry["action"]] += 1
    return calls


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A sandbox with the resources that an account usually has, including an instance profile ROLE_NAME.

    folder: contains cluster.toml and the launchers' files. env: the environment of a shell after
    `eval "$(cluster sandbox env)"`. private_key: the key for nodes that are launched with the key pair KEY_NAME.
    """

    folder: Path
    env: dict[str, str]
    ec2: "EC2Client"
    image: str
    private_key: Path
    own_address: str
    default_group: str
    daemon_pid: int

    def log_lines(self) -> list[str]:
        """Returns the lines of the API log so far."""
        return control.api_log(self.folder).read_text().splitlines()

    def instances(self, *states: str) -> list[str]:
        """Returns the ids of the instances in these states."""
        pages = self.ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": "instance-state-name", "Values": list(states)}]
        )
        return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]

    def inventory(self) -> Inventory:
        """Returns all resources that a launcher may create, as pairs of kind and id."""
        found = [("instance", each) for each in self.instances("pending", "running", "stopping", "stopped")]
        found += [("instance shutting down", each) for each in self.instances("shutting-down")]
        groups = self.ec2.describe_security_groups()["SecurityGroups"]
        found += [("security group", group["GroupId"]) for group in groups]
        found += [("key pair", key["KeyName"]) for key in self.ec2.describe_key_pairs()["KeyPairs"]]
        placements = self.ec2.describe_placement_groups()["PlacementGroups"]
        found += [("placement group", group["GroupName"]) for group in placements]
        return frozenset(found)

    def sweep(self, left: Inventory) -> None:
        """Deletes the resources that a launcher left, so that each launcher has the same start. Not measured."""
        if ids := [each for kind, each in left if kind == "instance"]:
            self.ec2.terminate_instances(InstanceIds=ids)
        until(lambda: not self.instances("running", "shutting-down", "stopping"), "instances are gone")
        for kind, each in left:
            if kind == "key pair":
                self.ec2.delete_key_pair(KeyName=each)
            elif kind == "placement group":
                self.ec2.delete_placement_group(GroupName=each)
        groups = {each for kind, each in left if kind == "security group"}
        until(lambda: self._delete_groups(groups), "security groups are gone")

    def _delete_groups(self, groups: set[str]) -> bool:
        for group in sorted(groups):
            try:
                self.ec2.delete_security_group(GroupId=group)
            except ClientError as error:
                if error.response["Error"]["Code"] != "DependencyViolation":
                    raise
                continue  # another group's rule refers to it: delete that group first
            groups.discard(group)
        return not groups


def until(condition: Callable[[], object], what: str, pause_s: float = 0.1) -> None:
    """Waits until the condition is true. Raises TimeoutError, with `what` in its message, if it never is."""
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not after {TIMEOUT_S:.0f} s: {what}")
        time.sleep(pause_s)


@contextmanager
def running_world(config: FolderSettings) -> Iterator[World]:
    """Starts a separate sandbox, which is removed at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    try:
        info = control.start(folder, config, report=silent)
        yield _prepare(folder, info)
    finally:
        control.reset(folder, report=silent)
        shutil.rmtree(folder)


def _prepare(folder: Path, info: control.SandboxInfo) -> World:
    session = boto3.Session(info.settings.access_key_id, info.settings.secret_access_key, region_name=REGION)

    def client(service: Any) -> Any:
        return session.client(service, endpoint_url=info.endpoint_url, verify=str(info.paths.ca_file))

    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CLUSTER_", "PYTHON"))}
    env = {**kept, **control.environment(info), "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
    ec2: EC2Client = client("ec2")
    private_key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(private_key)], check=True)
    ec2.import_key_pair(KeyName=KEY_NAME, PublicKeyMaterial=private_key.with_suffix(".pub").read_bytes())
    iam = client("iam")
    iam.create_role(RoleName=ROLE_NAME, AssumeRolePolicyDocument=json.dumps(TRUST))
    iam.create_instance_profile(InstanceProfileName=ROLE_NAME)
    iam.add_role_to_instance_profile(InstanceProfileName=ROLE_NAME, RoleName=ROLE_NAME)
    _open_to_the_internet(ec2)
    own_address = _find_own_address(info)
    [group] = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    ec2.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp=f"{own_address}/32"
    )
    return World(
        folder=folder,
        env=env,
        ec2=ec2,
        image=client("ssm").get_parameter(Name=IMAGE)["Parameter"]["Value"],
        private_key=private_key,
        own_address=own_address,
        default_group=group["GroupId"],
        daemon_pid=info.daemon.pid,
    )


def _open_to_the_internet(ec2: "EC2Client") -> None:
    """Adds the route that AWS's default VPCs have. Without it, SkyPilot treats a subnet as private."""
    [vpc] = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    tables = ec2.describe_route_tables(
        Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}, {"Name": "association.main", "Values": ["true"]}]
    )
    [table] = tables["RouteTables"]
    if any(route.get("GatewayId", "").startswith("igw-") for route in table["Routes"]):
        return
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc["VpcId"])
    ec2.create_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)


def _find_own_address(info: control.SandboxInfo) -> str:
    trusted = ssl.create_default_context(cafile=info.paths.ca_file)
    with urllib.request.urlopen(info.endpoint_url + CHECKIP_PATH, context=trusted, timeout=10) as answer:
        address: str = answer.read().decode().strip()
    return address
