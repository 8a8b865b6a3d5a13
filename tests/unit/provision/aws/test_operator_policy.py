"""IAM policy of an operator, evaluated by the tests' own IAM."""

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


@pytest.mark.parametrize(
    ("action", "resource", "context", "allowed"),
    [
        ("ec2:TerminateInstances", "instance/i-1", OURS, True),
        ("ec2:TerminateInstances", "instance/i-1", NEIGHBOURS, False),
        ("ec2:TerminateInstances", "instance/i-1", {}, False),
        ("ec2:StopInstances", "instance/i-1", NEIGHBOURS, False),
        ("ec2:GetConsoleOutput", "instance/i-1", {}, False),
        ("ec2:DeleteSecurityGroup", "security-group/sg-1", OURS, True),
        ("ec2:AuthorizeSecurityGroupIngress", "security-group/sg-1", {}, False),
        ("ec2:DeleteKeyPair", "key-pair/cluster-demo", {}, False),
        ("ec2:RunInstances", "instance/*", MADE, True),
        ("ec2:RunInstances", "instance/*", {}, False),
        ("ec2:RunInstances", "volume/*", {}, False),
        ("ec2:RunInstances", "security-group/sg-default", {}, True),
        ("ec2:RunInstances", "key-pair/cluster-demo", {}, True),
        ("ec2:RunInstances", "key-pair/cluster-other", {}, False),
        ("ec2:CreateSecurityGroup", "security-group/*", MADE, True),
        ("ec2:CreateSecurityGroup", "security-group/*", {}, False),
        ("ec2:CreateSecurityGroup", "vpc/vpc-1", {}, True),
        ("ec2:ImportKeyPair", "key-pair/cluster-demo", MADE, True),
        ("ec2:ImportKeyPair", "key-pair/mine", MADE, False),
        ("ec2:CreateTags", "instance/*", {**MADE, "ec2__CreateAction": "RunInstances"}, True),
        ("ec2:CreateTags", "instance/i-1", MADE, False),
        ("ec2:CreateTags", "instance/i-1", {**OURS, "aws__TagKeys": "cluster:lease"}, True),
        ("ec2:CreateTags", "instance/i-1", {**OURS, "aws__TagKeys": "cluster:name"}, False),
        ("ec2:CreateTags", "instance/i-1", {**NEIGHBOURS, "aws__TagKeys": "cluster:lease"}, False),
        ("ec2:DeleteTags", "instance/i-1", OURS, False),
        ("ec2:CreateTags", "security-group/sg-1", {**OURS, "aws__TagKeys": "cluster:lease"}, True),
        ("ec2:ModifyInstanceAttribute", "instance/i-1", OURS, True),
        ("ec2:ModifyInstanceAttribute", "instance/i-1", NEIGHBOURS, False),
        ("ec2:RunInstances", "instance/*", {"aws__RequestTag___cluster__name": bake_name("demo")}, True),
        ("ec2:ImportKeyPair", f"key-pair/cluster-{bake_name('demo')}", MADE, True),
        ("ec2:CreateImage", "instance/i-1", OURS, True),
        ("ec2:CreateImage", "instance/i-1", NEIGHBOURS, False),
        ("ec2:CreateImage", "snapshot/*", MADE, True),
        ("ec2:CreateImage", "snapshot/*", {}, False),
        ("ec2:DeregisterImage", "image/ami-1", OURS, True),
        ("ec2:DeregisterImage", "image/ami-1", {}, False),
        ("ec2:DeleteSnapshot", "snapshot/snap-1", NEIGHBOURS, False),
    ],
)
def test_an_operator_changes_only_what_has_the_clusters_tag(
    action: str, resource: str, context: dict[str, str], *, allowed: bool
) -> None:
    assert may(operator(), action, ec2(resource), **context) is allowed


def test_an_operator_may_make_credentials_for_jobs() -> None:
    sts = f"arn:aws:sts::{ACCOUNT}:federated-user"
    assert may(operator(), "sts:GetFederationToken", f"{sts}/{federated_name('demo')}")
    assert not may(operator(), "sts:GetFederationToken", f"{sts}/cluster-other")
    assert may(operator(name=None), "sts:GetFederationToken", f"{sts}/{federated_name('x' * 32)}")
    assert not may(operator(instance_profile="auto"), "sts:GetFederationToken", f"{sts}/cluster-demo")


def test_an_operator_of_all_clusters_also_needs_a_tag() -> None:
    document = operator(name=None)
    assert may(document, "ec2:TerminateInstances", ec2("instance/i-1"), **NEIGHBOURS)
    assert not may(document, "ec2:TerminateInstances", ec2("instance/i-1"))
    assert may(document, "ec2:ImportKeyPair", ec2("key-pair/cluster-other"), **MADE)
    assert not may(document, "ec2:ImportKeyPair", ec2("key-pair/mine"), **MADE)


def test_an_operator_reads_only_in_the_clusters_region() -> None:
    assert may(operator(), "ec2:DescribeInstances")
    assert not may(operator(), "ec2:DescribeInstances", aws__RequestedRegion="eu-west-1")
    assert not may(operator(), "ec2:DescribeInstanceAttribute", ec2("instance/i-1"))


def test_operator_makes_only_the_clusters_role() -> None:
    """The cluster's own role, and only with "auto"."""
    own = iam("role/cluster-us-east-1-demo")
    assert not may(operator(), "iam:PutRolePolicy", own)
    assert not may(operator(), "iam:PassRole", own, iam__PassedToService="ec2.amazonaws.com")
    document = operator(instance_profile="auto")
    assert may(document, "iam:PutRolePolicy", own)
    assert not may(document, "iam:PutRolePolicy", iam("role/admin"))
    assert may(document, "iam:PassRole", own, iam__PassedToService="ec2.amazonaws.com")
    assert not may(document, "iam:PassRole", own, iam__PassedToService="lambda.amazonaws.com")
    assert not may(document, "iam:PassRole", iam("role/admin"), iam__PassedToService="ec2.amazonaws.com")
    assert may(operator(name=None, instance_profile="auto"), "iam:CreateRole", iam("role/cluster-us-east-1-x"))


def test_an_operator_may_pass_a_named_profile_but_not_change_it() -> None:
    document = operator(instance_profile="trainers")
    assert may(document, "iam:PassRole", iam("role/trainers"), iam__PassedToService="ec2.amazonaws.com")
    assert may(document, "iam:GetInstanceProfile", iam("instance-profile/trainers"))
    assert not may(document, "iam:PutRolePolicy", iam("role/trainers"))


def test_only_a_spot_cluster_allows_spot() -> None:
    linked = iam("role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot")
    for market, allowed in (("spot", True), ("on-demand", False)):
        document = operator(market=market)
        asked = may(document, "iam:CreateServiceLinkedRole", linked, iam__AWSServiceName="spot.amazonaws.com")
        assert asked is allowed
        assert may(document, "ec2:RunInstances", ec2("spot-instances-request/*")) is allowed


def test_an_operator_uses_only_the_configured_buckets() -> None:
    for bucket, allowed in (("data", True), ("results", True), ("other", False)):
        assert may(operator(), "s3:PutObject", f"arn:aws:s3:::{bucket}/any/key") is allowed
        assert may(operator(), "s3:CreateBucket", f"arn:aws:s3:::{bucket}") is allowed
    assert not may(operator(data=None, results=None), "s3:PutObject", "arn:aws:s3:::data/any/key")


def test_an_operator_may_make_every_call_of_the_data_commands() -> None:
    places = ("*", "arn:aws:s3:::data", "arn:aws:s3:::data/any/key")
    refused = {action for action in ACTIONS.values() if not any(may(operator(), action, each) for each in places)}
    assert not refused


@pytest.mark.parametrize("region", ["cn-northwest-1"])
@pytest.mark.parametrize("profile", ["auto", "p" * 128])
def test_the_longest_policy_fits(region: str, profile: str) -> None:
    document = operator(
        name="n" * 32,
        data=f"s3://{'d' * 63}/",
        results=f"s3://{'r' * 63}/",
        region=region,
        market=["spot", "on-demand"],
        instance_profile=profile,
        efa=True,
    )
    assert len("".join(document.split())) <= MAX_POLICY_LENGTH


SERVICES = {"ec2": "ec2", "run_ec2": "ec2", "iam": "iam", "ssm": "ssm", "sts": "sts", "s3": "s3",
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
    assert called - allowed <= {"sts:GetCallerIdentity"}


def test_the_command_prints_only_json_to_stdout(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write('name = "demo"\n[provision]\ninstance_profile = "auto"\n[data]\nurl = "s3://data/digits/"\n')
    done = project.run("iam-policy")
    assert json.loads(done.stdout) == json.loads(operator(results=None, instance_profile="auto"))
    assert "any permission" in done.stderr
    done = project.run("iam-policy", "--all-clusters")
    assert json.loads(done.stdout) == json.loads(operator(name=None, results=None, instance_profile="auto"))


def with_volumes(*sources: str) -> str:
    volumes = tuple(VolumeConfig(mount=f"/v{at}", source=source) for at, source in enumerate(sources))
    return render_operator_policy(ProvisionConfig(), name="demo", data_url=DATA, results_url=RESULTS, volumes=volumes)


@pytest.mark.parametrize(
    ("action", "resource", "context", "allowed"),
    [
        ("ec2:CreateVolume", "volume/*", {"aws__RequestTag___cluster__name": "demo"}, True),
        ("ec2:CreateVolume", "volume/*", {}, False),
        ("ec2:CreateVolume", "volume/*", {"aws__RequestTag___cluster__name": "other"}, False),
        ("ec2:AttachVolume", "volume/vol-1", OURS, True),
        ("ec2:AttachVolume", "instance/i-1", OURS, True),
        ("ec2:AttachVolume", "volume/vol-1", {}, False),
        ("ec2:DeleteVolume", "volume/vol-1", OURS, True),
        ("ec2:DeleteVolume", "volume/vol-1", {}, False),
        ("ec2:CreateTags", "volume/vol-1", {**OURS, "aws__TagKeys": "cluster:keep"}, True),
        ("ec2:CreateTags", "volume/vol-1", {**OURS, "aws__TagKeys": "cluster:name"}, False),
        ("ec2:CreateTags", "volume/vol-1", {"aws__TagKeys": "cluster:keep"}, False),
        ("ec2:CreateTags", "instance/i-1", {**OURS, "aws__TagKeys": "cluster:keep"}, False),
    ],
)
def test_operators_may_use_the_clusters_volumes_only(
    action: str, resource: str, context: dict[str, str], *, allowed: bool
) -> None:
    assert may(with_volumes("head"), action, ec2(resource), **context) == allowed


def test_operators_only_describe_file_systems() -> None:
    """Only where cluster.toml has one."""
    for action in ("elasticfilesystem:DescribeFileSystems", "fsx:DescribeFileSystems"):
        assert may(with_volumes("fs-0123abcd"), action)
        assert not may(with_volumes("head"), action)
    for action in ("elasticfilesystem:DeleteFileSystem", "elasticfilesystem:ModifyMountTargetSecurityGroups"):
        assert not may(with_volumes("fs-0123abcd"), action)
    assert len("".join(with_volumes("head", "fs-0123abcd").split())) <= MAX_POLICY_LENGTH


def test_operators_may_use_the_buckets_of_volumes() -> None:
    assert may(with_volumes("s3://volumes/a/"), "s3:GetObject", "arn:aws:s3:::volumes/a/file")
    assert not may(with_volumes("head"), "s3:GetObject", "arn:aws:s3:::volumes/a/file")
