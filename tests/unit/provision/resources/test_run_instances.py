import gzip
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError, SSLError
from msgspec.structs import replace

from foundation.progress import Event
from provision.describe import number_nodes, read_instance
from provision.lease.user_data import SSHD_SETTINGS, render_user_data
from provision.model import Instance
from provision.resources.run_instances import NodeSpec, call_run_instances, request_digest, run_instances_request
from provision_world import aws_error, make_option
from sandbox_in_process import Clock

NODES = NodeSpec(indices=(0, 1, 4), key_name="cluster-demo", volume_size_gib=50, public_address=True)


def request(nodes: NodeSpec = NODES, *, least: int = 3, group_id: str | None = "sg-1", **option: Any) -> Any:
    owner = "arn:aws:iam::1:user/ada"
    return run_instances_request(nodes, make_option(**option), least=least, name="demo", owner=owner, group_id=group_id)


def test_the_request() -> None:
    tags = [
        {"Key": "cluster:name", "Value": "demo"},
        {"Key": "cluster:role", "Value": "node"},
        {"Key": "cluster:owner", "Value": "arn:aws:iam::1:user/ada"},
        {"Key": "Name", "Value": "cluster-demo"},
    ]
    nodes = replace(NODES, placement_group="cluster-demo", instance_profile="nodes", public_address=False)
    assert request(nodes, least=1, placement=True, efa=True, market="spot") == {
        "ImageId": "ami-0123456789abcdef0",
        "InstanceType": "c5.xlarge",
        "MinCount": 1,
        "MaxCount": 3,
        "KeyName": "cluster-demo",
        "Placement": {"GroupName": "cluster-demo"},
        "IamInstanceProfile": {"Name": "nodes"},
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"VolumeSize": 50, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True},
            }
        ],
        "UserData": render_user_data(None, cluster="demo"),
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": "subnet-1",
                "Groups": ["sg-1"],
                "AssociatePublicIpAddress": False,
                "DeleteOnTermination": True,
                "InterfaceType": "efa",
            }
        ],
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        },
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [*tags, {"Key": "cluster:index", "Value": "0-1,4"}]},
            {"ResourceType": "volume", "Tags": tags},
            {"ResourceType": "network-interface", "Tags": tags},
            {"ResourceType": "spot-instances-request", "Tags": tags},
        ],
    }
    plain = request()
    assert not {"Placement", "IamInstanceProfile", "InstanceMarketOptions"} & set(plain)
    assert plain["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is True
    digests = {request_digest(each) for each in (plain, request(), request(least=2), request(image_id="ami-2"))}
    assert len(digests) == 3


UNKNOWN_PROFILE = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
EMPTY_PROFILE = 'IAM Instance Profile "arn:aws:iam::1:instance-profile/x" has no associated IAM Roles'


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (aws_error("InvalidParameterValue", words=UNKNOWN_PROFILE), 3),
        (aws_error("InvalidParameterValue", words=EMPTY_PROFILE), 3),
        (ReadTimeoutError(endpoint_url="https://ec2"), 3),
        (EndpointConnectionError(endpoint_url="https://ec2"), 3),
        (aws_error("UnauthorizedOperation"), 1),
        (SSLError(endpoint_url="https://ec2", error=OSError("x")), 1),
    ],
)
def test_what_is_retried_with_the_same_token(monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int) -> None:
    clock = Clock()
    monkeypatch.setattr("provision.resources.run_instances.time", clock)
    monkeypatch.setattr("foundation.waiting.time", clock)
    requests: list[Any] = []
    events: list[Event] = []

    def run_instances(**values: Any) -> None:
        requests.append(values)
        if len(requests) < 3:
            raise error

    client: Any = SimpleNamespace(run_instances=run_instances)
    with suppress(type(error)):
        call_run_instances(client, request(), client_token="token-1", report=events.append)
    assert requests == [{**request(), "ClientToken": "token-1"}] * attempts
    assert [event.kind for event in events] == ["warn"] * (attempts - 1)
    assert all("An error occurred" not in event.what for event in events)  # botocore's text around AWS's message
    assert len(clock.slept_s) == attempts - 1


def instance(name: str, *, launch_index: int, indices: str | None, age_s: int = 0, **more: Any) -> Instance:
    launched = datetime(2030, 1, 1, tzinfo=UTC) - timedelta(seconds=age_s)
    shown: Any = {
        "InstanceId": name,
        "AmiLaunchIndex": launch_index,
        "LaunchTime": launched,
        "State": {"Name": "running"},
        "InstanceType": "c5.xlarge",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "Tags": [{"Key": "cluster:index", "Value": indices}] if indices is not None else [],
        **more,
    }
    return read_instance(shown, reservation_id="r-1")


def names(*instances: Instance) -> dict[int, str]:
    """The instance ids by node number. Checks that they are the same for any order in which EC2 lists the instances."""
    results = [{node.index: node.instance_id for node in number_nodes(order)} for order in permutations(instances)]
    assert all(result == results[0] for result in results)
    return results[0]


def test_an_index_stays_when_other_nodes_change() -> None:
    old = instance("i-old", launch_index=1, indices="0-2", age_s=60)
    new = [instance(f"i-new{k}", launch_index=k, indices="0,2") for k in (0, 1)]
    assert names(old) == {1: "i-old"}
    assert names(old, *new) == {0: "i-new0", 1: "i-old", 2: "i-new1"}
    # A start changes LaunchTime, but the first interface stays attached.
    attached = {"Attachment": {"AttachTime": datetime(2029, 1, 1, tzinfo=UTC), "DeviceIndex": 0}}
    started = instance("i-started", launch_index=0, indices=None, NetworkInterfaces=[attached])
    assert names(started, instance("i-young", launch_index=0, indices=None, age_s=1000)) == {
        0: "i-started",
        1: "i-young",
    }
    [node] = number_nodes([old])
    assert (node.name, node.role) == ("node-1", "head")


@pytest.mark.parametrize("includes", [True, False])
def test_the_boot_script_makes_sshd_end_dead_sessions(tmp_path: Path, *, includes: bool) -> None:
    """The script adds these settings before all others, only once, and changes nothing else."""
    config, drop_in = tmp_path / "etc" / "sshd_config", tmp_path / "etc" / "sshd_config.d" / "00-cluster.conf"
    config.parent.mkdir()
    before = f"Include {config}.d/*.conf\n" * includes + "Port 22\nClientAliveInterval 0\nMatch User x\n"
    config.write_text(before)
    config.chmod(0o640)
    script = SSHD_SETTINGS  # without the lease's program, which would run on this machine
    text = gzip.decompress(request()["UserData"]).decode()
    assert text.startswith("#cloud-boothook\n#!/bin/sh\n")
    assert text.endswith(script)
    script = script.replace("/etc/ssh/", f"{config.parent}/").replace("/run/", f"{tmp_path}/run/")
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", script], check=True)
        texts = (drop_in.read_text(), config.read_text()) if includes else (config.read_text(), before)
        assert texts[0].startswith("# Written by cluster at boot.\nClientAliveInterval 15\nClientAliveCountMax 4\n")
        assert texts[0].count("15") == 1
        assert texts[1] == before
        assert includes or texts[0].endswith(before)
    assert config.stat().st_mode & 0o777 == 0o640
