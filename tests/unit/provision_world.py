"""What the provision tests share: values to plan with, and an EC2 (moto's, in this process) to apply to.

Its fixtures reach the tests by conftest.py beside it.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import amis, ec2_backends
from moto.ec2.models.instances import InstanceBackend

import provision.instances
import provision.launch
import provision.settle
import provision.wait
from provision.aws import Clients, make_clients
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.lifecycle import down, prepare_down, prepare_up, up
from provision.model import ClusterState, LaunchTarget, Node
from provision.progress import silent
from provision.receipt import Receipt

NAME = "demo"
MOTO_IMAGE = "ami-785db401"  # an Ubuntu image that moto knows
CALLER = "203.0.113.7/32"
LAUNCHED_AT = datetime(2030, 1, 1, tzinfo=UTC)
READS = ("Describe", "Get", "List")


def make_config(**settings: Any) -> ProvisionConfig:
    return ProvisionConfig(**{"nodes": 2, "ami": MOTO_IMAGE, "ssh_from": CALLER, **settings})


def make_target(**values: Any) -> LaunchTarget:
    defaults: dict[str, Any] = {
        "region": "us-east-1",
        "account_id": "123456789012",
        "owner": "arn:aws:iam::123456789012:user/ada",
        "instance_type": "c5.xlarge",
        "architecture": "x86_64",
        "vcpus": 4,
        "gpus": None,
        "image_id": "ami-0123456789abcdef0",
        "image_name": "ubuntu-22.04",
        "root_device": "/dev/sda1",
        "subnet_id": "subnet-1",
        "vpc_id": "vpc-1",
        "zone": "us-east-1a",
        "ssh_from": CALLER,
        "public_address": True,
    }
    return LaunchTarget(**{**defaults, **values})


def make_node(index: int, **values: Any) -> Node:
    defaults: dict[str, Any] = {
        "instance_id": f"i-{index}",
        "index": index,
        "role": "head" if index == 0 else "worker",
        "state": "running",
        "private_ip": f"10.0.0.{index + 10}",
        "public_ip": f"198.51.100.{index + 10}",
        "instance_type": "c5.xlarge",
        "zone": "us-east-1a",
        "launched_at": LAUNCHED_AT,
        "subnet_id": "subnet-1",
    }
    return Node(**{**defaults, **values})


class FakeTime:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.slept_s: list[float] = []

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s


class Killed(BaseException):
    """Stands for SIGKILL and Ctrl-C: nothing in the program may catch it."""


@dataclass
class Calls:
    """Every API call: counted, and a place to be killed just before or just after its effect."""

    made: list[str] = field(default_factory=list)
    kill_before: int | None = None
    kill_after: int | None = None
    points: int = 0

    def before(self, name: str) -> None:
        if self.kill_before == self.points:
            raise Killed(f"before {name}")
        self.made.append(name)

    def after(self, name: str) -> None:
        self.points += 1
        if self.kill_after == self.points - 1:
            raise Killed(f"after {name}")

    def mutating(self) -> Counter[str]:
        return Counter(name for name in self.made if not name.startswith(READS))

    def watch(self, clients: Clients) -> None:
        for client in (clients.ec2, clients.run_ec2, clients.ssm, clients.sts):
            events = client.meta.events
            events.register("before-call.*.*", lambda model, **_: self.before(model.name))
            events.register("after-call.*.*", lambda model, **_: self.after(model.name))


@dataclass
class World:
    """One EC2, one user's machine."""

    clients: Clients
    files: ClusterFiles
    calls: Calls
    time: FakeTime

    def up(self, config: ProvisionConfig) -> ClusterState:
        plan = prepare_up(self.clients, name=NAME, config=config, files=self.files)
        return up(plan, clients=self.clients, files=self.files, report=silent)

    def down(self) -> Receipt:
        plan = prepare_down(self.clients, name=NAME, files=self.files, report=silent)
        return down(plan, clients=self.clients, files=self.files, report=silent)

    def describe(self) -> ClusterState:
        return describe_cluster(self.clients.ec2, name=NAME)

    def reset(self, root: Path) -> None:
        """An empty EC2, and a machine that has nothing of the cluster."""
        ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].reset()
        self.files = ClusterFiles(root)
        self.calls.made.clear()

    @contextmanager
    def killed_at(self, point: int, *, before: bool) -> Iterator[None]:
        """Killed just before, or just after, the API call or fsync number `point`."""
        self.calls.points = 0
        self.calls.kill_before, self.calls.kill_after = (point, None) if before else (None, point)
        try:
            yield
        finally:
            self.calls.kill_before = self.calls.kill_after = None

    def resources(self) -> Counter[str]:
        """All that EC2 has of any cluster, asked without the code under test."""
        ec2 = self.clients.ec2
        instances = [
            instance
            for reservation in ec2.describe_instances()["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] != "terminated"
        ]
        return +Counter(
            {
                "instances": len(instances),
                "volumes": sum(bool(volume.get("Tags")) for volume in ec2.describe_volumes()["Volumes"]),
                "interfaces": len(ec2.describe_network_interfaces()["NetworkInterfaces"]),
                "groups": sum(g["GroupName"] != "default" for g in ec2.describe_security_groups()["SecurityGroups"]),
                "keys": len(ec2.describe_key_pairs()["KeyPairs"]),
            }
        )


def complete(nodes: int) -> Counter[str]:
    return Counter({"instances": nodes, "volumes": nodes, "interfaces": nodes, "groups": 1, "keys": 1})


def counting_fsync(calls: Calls, real: Callable[[int], None]) -> Callable[[int], None]:
    """os.fsync as one more point to be killed at."""

    def fsync(handle: int) -> None:
        calls.before("ListFsync")  # named so that it counts as no mutating call
        real(handle)
        calls.after("ListFsync")

    return fsync


@pytest.fixture(scope="module")
def ec2() -> Iterator[World]:
    """Clients take a second to make: one set for the module, and an empty EC2 for each test."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        # An empty EC2 has this image only: moto makes volumes for each of its own hundreds, at each reset.
        patch.setenv("MOTO_AMIS_PATH", "see the next line")
        patch.setattr(amis, "AMIS", [image for image in amis.AMIS if image["ami_id"] == MOTO_IMAGE])
        clock = FakeTime()
        for module in (provision.wait, provision.settle, provision.launch, provision.instances):
            patch.setattr(module, "time", clock)
        calls = Calls()
        patch.setattr(os, "fsync", counting_fsync(calls, os.fsync))
        clients = make_clients("us-east-1")
        calls.watch(clients)
        yield World(clients=clients, files=ClusterFiles(Path("/nonexistent")), calls=calls, time=clock)


@pytest.fixture
def world(ec2: World, tmp_path: Path) -> World:
    ec2.reset(tmp_path / "cluster")
    return ec2


@pytest.fixture
def late_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An EC2 as it is: tokens count, and lists show new instances only some looks later (moto does neither)."""
    run = InstanceBackend.run_instances
    by_token: dict[str, Any] = {}

    def run_once(self: InstanceBackend, *args: Any, client_token: str, **kwargs: Any) -> Any:
        if client_token not in by_token:
            by_token[client_token] = run(self, *args, client_token=client_token, **kwargs)
            blind["looks"] = 4
        return by_token[client_token]

    blind = {"looks": 0}

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        if blind["looks"]:
            blind["looks"] -= 1
            parsed["Reservations"] = []

    monkeypatch.setattr(InstanceBackend, "run_instances", run_once)
    world.clients.ec2.meta.events.register("after-call.ec2.DescribeInstances", hide)
    yield world
    world.clients.ec2.meta.events.unregister("after-call.ec2.DescribeInstances", hide)
