import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import boto3
import pytest

import provision
from policies import ACCOUNT, DATA, MADE, NEIGHBOURS, OURS, REGION, RESULTS, ec2, iam, may, operator
from project import Project
from provision.aws.operator_policy import MAX_POLICY_LENGTH, render_operator_policy
from provision.config import ProvisionConfig
from provision.model import bake_name, federated_name
from provision.volumes.config import VolumeConfig
from train.s3.errors import ACTIONS


def with_volume(source: str) -> str:
    volumes = (VolumeConfig(mount="/v", source=source),)
    return render_operator_policy(ProvisionConfig(), name="demo", data_url=DATA, results_url=RESULTS, volumes=volumes)


STS = f"arn:aws:sts::{ACCOUNT}:federated-user"
S3 = "arn:aws:s3:::"
PLAIN, EVERY = operator(), operator(name=None)
OWN_ROLE, NAMED_ROLE = operator(instance_profile="auto"), operator(instance_profile="trainers")
HEAD, EFS = with_volume("head"), with_volume("fs-0123abcd")
ROLE = iam("role/cluster-us-east-1-demo")
TO_EC2 = {"iam__PassedToService": "ec2.amazonaws.com"}
SPOT_ROLE = iam("role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot")
FOR_SPOT = {"iam__AWSServiceName": "spot.amazonaws.com"}
LEASE, KEEP = {"aws__TagKeys": "cluster:lease"}, {"aws__TagKeys": "cluster:keep"}


@pytest.mark.parametrize(
    ("document", "action", "resource", "context", "allowed"),
    [
        # Only what has the cluster's tag is changed.
        (PLAIN, "ec2:TerminateInstances", ec2("instance/i-1"), OURS, True),
        (PLAIN, "ec2:TerminateInstances", ec2("instance/i-1"), NEIGHBOURS, False),
        (PLAIN, "ec2:RunInstances", ec2("instance/*"), MADE, True),
        (PLAIN, "ec2:RunInstances", ec2("key-pair/cluster-demo"), {}, True),
        (PLAIN, "ec2:RunInstances", ec2("key-pair/cluster-other"), {}, False),
        (PLAIN, "ec2:CreateSecurityGroup", ec2("vpc/vpc-1"), {}, True),
        (PLAIN, "ec2:CreateTags", ec2("instance/*"), {**MADE, "ec2__CreateAction": "RunInstances"}, True),
        (PLAIN, "ec2:CreateTags", ec2("instance/i-1"), MADE, False),
        (PLAIN, "ec2:CreateTags", ec2("instance/i-1"), {**OURS, **LEASE}, True),
        (PLAIN, "ec2:CreateTags", ec2("instance/i-1"), {**OURS, "aws__TagKeys": "cluster:name"}, False),
        (PLAIN, "ec2:DeleteTags", ec2("instance/i-1"), OURS, False),
        (EVERY, "ec2:TerminateInstances", ec2("instance/i-1"), NEIGHBOURS, True),
        (EVERY, "ec2:TerminateInstances", ec2("instance/i-1"), {}, False),
        (EVERY, "ec2:ImportKeyPair", ec2("key-pair/cluster-other"), MADE, True),
        (EVERY, "ec2:ImportKeyPair", ec2("key-pair/mine"), MADE, False),
        # Reads, in the cluster's region.
        (PLAIN, "ec2:DescribeInstances", "*", {"aws__RequestedRegion": "eu-west-1"}, False),
        (PLAIN, "ec2:DescribeInstanceAttribute", ec2("instance/i-1"), {}, False),
        (operator(regions=["us-west-2"]), "ec2:DescribeInstances", "*", {"aws__RequestedRegion": "us-west-2"}, True),
        # Images, and the cluster that bakes them.
        (PLAIN, "ec2:RunInstances", ec2("instance/*"), {"aws__RequestTag___cluster__name": bake_name("demo")}, True),
        (PLAIN, "ec2:ImportKeyPair", ec2(f"key-pair/cluster-{bake_name('demo')}"), MADE, True),
        (PLAIN, "ec2:CreateImage", ec2("instance/i-1"), OURS, True),
        (PLAIN, "ec2:CreateImage", ec2("instance/i-1"), NEIGHBOURS, False),
        (PLAIN, "ec2:DeregisterImage", ec2("image/ami-1"), OURS, True),
        # The cluster's own role, and only with "auto".
        (PLAIN, "iam:PutRolePolicy", ROLE, {}, False),
        (OWN_ROLE, "iam:PutRolePolicy", ROLE, {}, True),
        (OWN_ROLE, "iam:PutRolePolicy", iam("role/admin"), {}, False),
        (OWN_ROLE, "iam:PassRole", ROLE, TO_EC2, True),
        (OWN_ROLE, "iam:PassRole", ROLE, {"iam__PassedToService": "lambda.amazonaws.com"}, False),
        (OWN_ROLE, "iam:PassRole", iam("role/admin"), TO_EC2, False),
        (NAMED_ROLE, "iam:PassRole", iam("role/trainers"), TO_EC2, True),
        # Credentials for jobs, unless the nodes have a role.
        (PLAIN, "sts:GetFederationToken", f"{STS}/{federated_name('demo')}", {}, True),
        (EVERY, "sts:GetFederationToken", f"{STS}/{federated_name('x' * 32)}", {}, True),
        (OWN_ROLE, "sts:GetFederationToken", f"{STS}/cluster-demo", {}, False),
        # Spot.
        (operator(market="spot"), "ec2:RunInstances", ec2("spot-instances-request/*"), {}, True),
        (PLAIN, "ec2:RunInstances", ec2("spot-instances-request/*"), {}, False),
        (operator(market="spot"), "iam:CreateServiceLinkedRole", SPOT_ROLE, FOR_SPOT, True),
        (PLAIN, "iam:CreateServiceLinkedRole", SPOT_ROLE, FOR_SPOT, False),
        (operator(reservation="cr-1"), "ec2:RunInstances", ec2("capacity-reservation/cr-1"), {}, True),
        # The configured buckets.
        (PLAIN, "s3:PutObject", f"{S3}data/any/key", {}, True),
        (PLAIN, "s3:PutObject", f"{S3}other/any/key", {}, False),
        (operator(data=None, results=None), "s3:PutObject", f"{S3}data/any/key", {}, False),
        (with_volume("s3://volumes/a/"), "s3:GetObject", f"{S3}volumes/a/file", {}, True),
        # The cluster's volume; file systems are only described.
        (HEAD, "ec2:CreateTags", ec2("volume/vol-1"), {**OURS, **KEEP}, True),
        (HEAD, "ec2:CreateTags", ec2("volume/vol-1"), KEEP, False),
        (EFS, "elasticfilesystem:DescribeFileSystems", "*", {}, True),
    ],
)
def test_what_an_operator_may_do(
    document: str, action: str, resource: str, context: dict[str, str], *, allowed: bool
) -> None:
    assert may(document, action, resource, **context) is allowed


def test_an_operator_may_make_every_call_of_the_data_commands() -> None:
    resources = ("*", "arn:aws:s3:::data", "arn:aws:s3:::data/any/key")
    refused = {action for action in ACTIONS.values() if not any(may(PLAIN, action, each) for each in resources)}
    assert not refused


@pytest.mark.parametrize("profile", ["auto", "p" * 128])
def test_the_longest_policy_fits(profile: str) -> None:
    document = operator(
        name="n" * 32,
        data=f"s3://{'d' * 63}/",
        results=f"s3://{'r' * 63}/",
        region="cn-northwest-1",
        regions=["cn-north-1"],
        reservation="cr-0123456789abcdef0",
        market=["spot", "on-demand"],
        instance_profile=profile,
        efa=True,
    )
    assert len("".join(document.split())) <= MAX_POLICY_LENGTH


SERVICES = {"ec2": "ec2", "run_ec2": "ec2", "iam": "iam", "sts": "sts", "s3": "s3",
            "service_quotas": "service-quotas", "pricing": "pricing"}  # fmt: skip
PREFIXES = {"service-quotas": "servicequotas"}
# Some of S3's permissions and operations have different names.
S3_PERMISSIONS = {"ListObjectsV2": "ListBucket", "ListMultipartUploads": "ListBucketMultipartUploads",
                  "ListParts": "ListMultipartUploadParts"}  # fmt: skip


def calls_in_source() -> Iterator[tuple[str, str]]:
    """Yields each method of a boto3 client in the source of `provision`, as (service, API operation)."""
    mappings: dict[str, Any] = {
        service: boto3.client(cast("Any", service), region_name=REGION).meta.method_to_api_mapping
        for service in set(SERVICES.values())
    }
    for path in Path(str(provision.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            service = SERVICES.get(owner)
            if service is not None and node.attr in mappings[service]:
                yield service, mappings[service][node.attr]
        for owner, method in re.findall(r"\b(\w+)\.get_paginator\(\"(\w+)\"\)", path.read_text()):
            if owner in SERVICES:
                yield SERVICES[owner], mappings[SERVICES[owner]][method]


def test_operator_policy_has_every_call_of_provision() -> None:
    documents = [json.loads(operator(instance_profile=profile, market=["spot"])) for profile in ("auto", "none")]
    allowed: set[str] = set()
    for statement in (statement for document in documents for statement in document["Statement"]):
        actions = statement["Action"]
        allowed.update([actions] if isinstance(actions, str) else actions)
    called = {
        f"{PREFIXES.get(service, service)}:{S3_PERMISSIONS.get(operation, operation) if service == 's3' else operation}"
        for service, operation in calls_in_source()
    }
    assert len(called) > 20
    # The trust policy of a role decides whether it may assume itself; the others need no permission.
    assert called - allowed <= {"sts:GetCallerIdentity", "sts:GetSessionToken", "sts:AssumeRole"}


def test_the_command_prints_only_json_to_stdout(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write('name = "demo"\n[provision]\ninstance_profile = "auto"\n[data]\nurl = "s3://data/digits/"\n')
    done = project.run("iam-policy")
    assert json.loads(done.stdout) == json.loads(operator(results=None, instance_profile="auto"))
    assert "any permission" in done.stderr
    done = project.run("iam-policy", "--all-clusters")
    assert json.loads(done.stdout) == json.loads(operator(name=None, results=None, instance_profile="auto"))
