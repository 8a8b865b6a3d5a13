"""IAM policies of the nodes' role, a job and an operator, evaluated by the tests' own IAM."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import boto3
import pytest

import provision
from foundation.errors import ConfigError
from iam_evaluator import Ask, decide, parse_policy
from project import Project
from provision.aws.iam_policy import (
    MAX_SESSION_POLICY_LENGTH,
    S3Scope,
    partition_of,
    render_job_policy,
    render_trust_policy,
)
from provision.aws.operator_policy import MAX_POLICY_LENGTH, render_operator_policy
from provision.aws.role_policy import MAX_POLICY_LENGTH as MAX_ROLE_POLICY_LENGTH
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig
from provision.model import federated_name, tags
from provision.volumes.config import VolumeConfig
from train.s3.errors import ACTIONS

REGION = "us-east-1"
ACCOUNT = "123456789012"
DATA = "s3://data/digits/"
RESULTS = "s3://results/models/"


def role(data: str | None = DATA, results: str | None = RESULTS, *, replaces: bool = True, **config: Any) -> str:
    return render_role_policy(
        ProvisionConfig(**config),
        name="demo",
        region=config.get("region", REGION),
        data_url=data,
        results_url=results,
        replaces_nodes=replaces,
    )


def operator(
    *,
    name: str | None = "demo",
    data: str | None = DATA,
    results: str | None = RESULTS,
    **config: Any,
) -> str:
    return render_operator_policy(ProvisionConfig(**config), name=name, data_url=data, results_url=results)


def may(document: str, action: str, resource: str = "*", **context: str | tuple[str, ...]) -> bool:
    """Whether IAM allows the action. context: condition keys, with __ for : and ___ for /."""
    given = {
        key.replace("___", "/").replace("__", ":").lower(): (value,) if isinstance(value, str) else value
        for key, value in context.items()
    }
    ask = Ask(action=action, resource=resource, context={"aws:requestedregion": (REGION,), **given})
    return decide([parse_policy(document)], ask) == "allowed"


def ec2(resource: str) -> str:
    return f"arn:aws:ec2:{REGION}:{ACCOUNT}:{resource}"


SCOPE = S3Scope(
    data_url=DATA,
    results_url=RESULTS,
    also_read=("s3://more/one.rec", "s3://more/two/"),
    also_written=("s3://saved/net",),
)
JOB = render_job_policy(SCOPE, region=REGION)


@pytest.mark.parametrize(
    ("action", "resource", "allowed"),
    [
        ("s3:GetObject", "data/digits/train/0.rec", True),
        ("s3:GetObject", "data/digits-secret/0.rec", False),
        ("s3:GetObject", "database/digits/0.rec", False),
        ("s3:PutObject", "data/digits/train/0.rec", False),
        ("s3:DeleteObject", "data/digits/train/0.rec", False),
        ("s3:PutObject", "results/models/a.params", True),
        ("s3:GetObject", "results/models/a.params", True),
        ("s3:DeleteObject", "results/models/a.params", False),
        ("s3:PutObject", "results/elsewhere", False),
        ("s3:ListBucketMultipartUploads", "results", False),
        ("s3:DeleteObject", "results/models/step-9/.metadata.tmp", True),  # torch.distributed.checkpoint renames it
        ("s3:DeleteObject", "results/elsewhere/.metadata.tmp", False),
        ("s3:DeleteObject", "data/digits/step-9/.metadata.tmp", False),
        ("s3:GetBucketLocation", "data", True),  # s3fs creates a bucket whose location is denied
        ("s3:GetBucketLocation", "elsewhere", False),
    ],
)
def test_role_and_job_only_read_data_and_write_results(action: str, resource: str, *, allowed: bool) -> None:
    assert may(role(), action, f"arn:aws:s3:::{resource}") is allowed
    assert may(JOB, action, f"arn:aws:s3:::{resource}") is allowed


@pytest.mark.parametrize(
    ("action", "resource", "allowed"),
    [
        ("s3:GetObject", "more/one.rec", True),
        ("s3:GetObject", "more/three", False),
        ("s3:PutObject", "more/two/a", False),
        ("s3:PutObject", "saved/net-0001.params", True),
        ("s3:PutObject", "saved/other", False),
    ],
)
def test_a_job_also_uses_its_further_urls(action: str, resource: str, *, allowed: bool) -> None:
    assert may(JOB, action, f"arn:aws:s3:::{resource}") is allowed


@pytest.mark.parametrize(
    ("bucket", "prefix", "role_may", "job_may"),
    [
        ("data", "digits", True, True),  # MXNet's reader looks for a folder like this
        ("data", "digits/", True, True),
        ("data", "", False, False),
        ("data", "digits-secret/", False, False),
        ("data", "models/", False, False),
        ("results", "models/a", True, True),
        ("results", "digits/", False, False),
        ("more", "two", False, True),
        ("more", "", False, False),
        ("more", "three/a", False, False),
        ("saved", "net-", False, True),
        ("saved", "", False, True),  # checkpoints are found by listing their folder
    ],
)
def test_role_and_job_list_only_their_folders(bucket: str, prefix: str, *, role_may: bool, job_may: bool) -> None:
    arn = f"arn:aws:s3:::{bucket}"
    assert may(role(), "s3:ListBucket", arn, s3__prefix=prefix) is role_may
    assert may(JOB, "s3:ListBucket", arn, s3__prefix=prefix) is job_may
    # Without a prefix, as S3 decides whether a missing object is "404 Not Found".
    assert may(role(), "s3:ListBucket", arn) is (bucket == "results")
    assert may(JOB, "s3:ListBucket", arn) is (bucket in ("results", "saved"))


@pytest.mark.parametrize("action", ["ec2:DescribeInstances", "iam:GetUser", "sts:AssumeRole", "s3:ListAllMyBuckets"])
def test_a_job_has_no_other_permissions(action: str) -> None:
    assert not may(JOB, action)


def test_a_job_uses_kms_keys_only_through_s3() -> None:
    assert may(JOB, "kms:Decrypt", kms__ViaService="s3.us-east-1.amazonaws.com")
    assert not may(JOB, "kms:Decrypt", kms__ViaService="ec2.us-east-1.amazonaws.com")
    assert not may(JOB, "kms:Decrypt")


def test_rejects_more_urls_than_a_policy_can_hold() -> None:
    with pytest.raises(ConfigError, match="AWS allows 2048"):
        render_job_policy(S3Scope(also_read=tuple(f"s3://bucket-{n}/a/folder/" for n in range(30))), region=REGION)
    assert len(JOB) < MAX_SESSION_POLICY_LENGTH


def test_an_operator_may_make_credentials_for_jobs() -> None:
    sts = f"arn:aws:sts::{ACCOUNT}:federated-user"
    assert may(operator(), "sts:GetFederationToken", f"{sts}/{federated_name('demo')}")
    assert not may(operator(), "sts:GetFederationToken", f"{sts}/cluster-other")
    assert may(operator(name=None), "sts:GetFederationToken", f"{sts}/{federated_name('x' * 32)}")
    assert not may(operator(instance_profile="auto"), "sts:GetFederationToken", f"{sts}/cluster-demo")


def test_a_url_without_a_slash_may_be_an_object() -> None:
    document = role(data="s3://data/train.rec", results=None)
    assert may(document, "s3:GetObject", "arn:aws:s3:::data/train.rec")
    assert may(document, "s3:GetObject", "arn:aws:s3:::data/train.rec/0")
    assert may(document, "s3:ListBucket", "arn:aws:s3:::data", s3__prefix="train.rec")
    assert not may(document, "s3:GetObject", "arn:aws:s3:::data/train.rec.secret")


@pytest.mark.parametrize("url", ["s3://data", "s3://data/"])
def test_a_whole_bucket(url: str) -> None:
    document = role(data=url, results=None)
    assert may(document, "s3:GetObject", "arn:aws:s3:::data/anything")
    assert may(document, "s3:ListBucket", "arn:aws:s3:::data", s3__prefix="")
    assert not may(document, "s3:GetObject", "arn:aws:s3:::database/anything")


def test_a_role_without_urls_reads_nothing() -> None:
    document = role(data=None, results=None)
    assert "s3:" not in document
    assert may(document, "ec2:TerminateInstances", ec2("instance/i-1"), aws__ResourceTag___cluster__name="demo")


@pytest.mark.parametrize("letter", ["*", "?", "\n"])
@pytest.mark.parametrize("key", ["url"])
def test_rejects_special_characters_of_iam(letter: str, key: str) -> None:
    urls: Any = {"data": DATA, "results": RESULTS, {"url": "data"}.get(key, key): f"s3://data/a{letter}b/"}
    with pytest.raises(ConfigError, match=rf"\[data\] {key} = "):
        role(**urls)
    with pytest.raises(ConfigError, match=rf"\[data\] {key} = "):
        operator(**urls)


@pytest.mark.parametrize(
    ("region", "service"), [("us-east-1", "ec2.amazonaws.com"), ("cn-north-1", "ec2.amazonaws.com.cn")]
)
def test_only_ec2_may_assume_the_role(region: str, service: str) -> None:
    (statement,) = json.loads(render_trust_policy(region))["Statement"]
    assert statement == {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}


@pytest.mark.parametrize(
    ("region", "partition"),
    [("eu-central-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("us-west-2", "aws")],
)
def test_arns_have_the_regions_partition(region: str, partition: str) -> None:
    assert partition_of(region) == partition
    policies = (
        role(region=region, market=["spot"]),
        operator(region=region, instance_profile="auto", market=["spot"]),
    )
    for arn in re.findall(r"arn:[a-z-]*:", "".join(policies)):
        assert arn == f"arn:{partition}:"


OURS = {"aws__ResourceTag___cluster__name": "demo"}
MADE = {"aws__RequestTag___cluster__name": "demo"}


def tagged(**more: str) -> dict[str, str | tuple[str, ...]]:
    """The condition keys of a call that sets a node's tags. more: further tags, or other values of these."""
    given = {**tags(name="demo", owner="anyone", role="node"), **{key.replace("__", ":"): v for key, v in more.items()}}
    requested = {f"aws__RequestTag___{key.replace(':', '__')}": value for key, value in given.items()}
    return {**requested, "aws__TagKeys": tuple(given)}


NEIGHBOURS = {"aws__ResourceTag___cluster__name": "other"}


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
    ],
)
def test_an_operator_changes_only_what_has_the_clusters_tag(
    action: str, resource: str, context: dict[str, str], *, allowed: bool
) -> None:
    assert may(operator(), action, ec2(resource), **context) is allowed


NODE = tagged(cluster__index="0-3", cluster__lease="{}")
PLACED = {"ec2__InstanceType": "c5.xlarge", "ec2__InstanceMarketType": "on-demand"}
TYPED = {**NODE, **PLACED}
AT_LAUNCH = {**NODE, "ec2__CreateAction": "RunInstances"}
OTHERS = tagged(cluster__name="other")
ROLE = f"arn:aws:iam::{ACCOUNT}:role"
TO_EC2 = {"iam__PassedToService": "ec2.amazonaws.com"}


@pytest.mark.parametrize(
    ("action", "resource", "context", "allowed"),
    [
        ("ec2:TerminateInstances", "instance/i-1", OURS, "replacing"),
        ("ec2:TerminateInstances", "instance/i-1", NEIGHBOURS, "never"),
        ("ec2:TerminateInstances", "instance/i-1", {}, "never"),
        ("ec2:StopInstances", "instance/i-1", OURS, "never"),
        ("ec2:StopInstances", "instance/i-1", NEIGHBOURS, "never"),
        ("ec2:StartInstances", "instance/i-1", OURS, "never"),
        ("ec2:RebootInstances", "instance/i-1", OURS, "never"),
        ("ec2:ModifyInstanceAttribute", "instance/i-1", OURS, "never"),
        ("ec2:RunInstances", "instance/*", TYPED, "replacing"),
        ("ec2:RunInstances", "instance/*", {**TYPED, "ec2__InstanceType": "p5.48xlarge"}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **OTHERS}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **tagged(cluster__role="head")}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **tagged(Name="production")}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **tagged(team="finance")}, "never"),
        ("ec2:RunInstances", "instance/*", {**MADE, **PLACED}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, "ec2__InstanceMarketType": "spot"}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, "ec2__InstanceMarketType": "capacity-block"}, "never"),
        ("ec2:RunInstances", "instance/*", PLACED, "never"),
        ("ec2:RunInstances", "volume/*", NODE, "replacing"),
        ("ec2:RunInstances", "volume/*", tagged(cluster__keep="true"), "never"),
        ("ec2:RunInstances", "volume/*", {}, "never"),
        ("ec2:RunInstances", "network-interface/*", NODE, "replacing"),
        ("ec2:RunInstances", "network-interface/*", OTHERS, "never"),
        ("ec2:RunInstances", "security-group/sg-1", OURS, "replacing"),
        ("ec2:RunInstances", "security-group/sg-1", NEIGHBOURS, "never"),
        ("ec2:RunInstances", "security-group/sg-default", {}, "never"),
        ("ec2:RunInstances", "key-pair/cluster-demo", {}, "replacing"),
        ("ec2:RunInstances", "key-pair/cluster-other", {}, "never"),
        ("ec2:RunInstances", "placement-group/cluster-demo", {}, "replacing"),
        ("ec2:RunInstances", "placement-group/cluster-other", {}, "never"),
        ("ec2:RunInstances", "subnet/subnet-1", {}, "replacing"),
        ("ec2:RunInstances", "spot-instances-request/*", {}, "never"),
        ("ec2:CreateTags", "instance/*", AT_LAUNCH, "replacing"),
        ("ec2:CreateTags", "volume/*", AT_LAUNCH, "replacing"),
        ("ec2:CreateTags", "instance/i-1", MADE, "never"),
        ("ec2:CreateTags", "instance/i-1", OURS, "never"),
        ("ec2:CreateTags", "instance/*", {**AT_LAUNCH, **OTHERS}, "never"),
        ("ec2:CreateTags", "instance/*", {**AT_LAUNCH, **tagged(team="finance")}, "never"),
        ("ec2:CreateTags", "security-group/sg-1", AT_LAUNCH, "never"),
        ("ec2:DeleteTags", "instance/i-1", OURS, "never"),
        ("ec2:AuthorizeSecurityGroupIngress", "security-group/sg-1", OURS, "never"),
        ("ec2:ImportKeyPair", "key-pair/cluster-demo", MADE, "never"),
        ("ec2:DeleteVolume", "volume/vol-1", OURS, "never"),
        ("ec2:AttachVolume", "volume/vol-1", OURS, "never"),
        ("ec2:DescribeInstances", "*", {}, "always"),
        ("ec2:DescribeInstances", "*", {"aws__RequestedRegion": "eu-west-1"}, "never"),
        ("ec2:DescribeSubnets", "*", {}, "replacing"),
        ("ec2:DescribeInstanceAttribute", "instance/i-1", OURS, "never"),
        ("ec2:GetConsoleOutput", "instance/i-1", OURS, "replacing"),
        ("ec2:GetConsoleOutput", "instance/i-1", NEIGHBOURS, "never"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-demo", TO_EC2, "replacing"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-demo", {"iam__PassedToService": "lambda.amazonaws.com"}, "never"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-other", TO_EC2, "never"),
        ("iam:PassRole", f"{ROLE}/admin", TO_EC2, "never"),
        ("iam:PutRolePolicy", f"{ROLE}/cluster-us-east-1-demo", {}, "never"),
        ("sts:AssumeRole", f"{ROLE}/cluster-us-east-1-demo", {}, "never"),
    ],
)
def test_a_role_ends_and_replaces_only_nodes_of_its_cluster(
    action: str, resource: str, context: dict[str, Any], allowed: str
) -> None:
    arn = resource if resource.startswith(("arn:", "*")) else ec2(resource)
    assert may(role(), action, arn, **context) is (allowed != "never")
    assert may(role(replaces=False), action, arn, **context) is (allowed == "always")


def test_role_launches_only_what_is_configured() -> None:
    """open_: `ami = "auto"` and both markets. narrow: one image, one subnet, spot."""
    image = f"arn:aws:ec2:{REGION}::image"
    canonical, amazon, someone = ({"ec2__Owner": owner} for owner in ("099720109477", "amazon", "210987654321"))
    open_ = role(instance_types=["c5.xlarge"], market=["spot", "on-demand"])
    narrow = role(ami="ami-1", subnet_id="subnet-1", market=["spot"])
    reserved = role(market=["spot"], reservation="cr-1")
    on_demand, spot, block = (
        {**TYPED, "ec2__InstanceMarketType": market} for market in ("on-demand", "spot", "capacity-block")
    )
    cases: tuple[tuple[str, dict[str, Any], bool, bool], ...] = (
        (f"{image}/ami-1", canonical, True, True),
        (f"{image}/ami-1", someone, False, True),
        (f"{image}/ami-2", canonical, True, False),
        (f"{image}/ami-2", amazon, True, False),
        (f"{image}/ami-2", someone, False, False),
        (f"{image}/ami-2", {"ec2__Owner": "aws-marketplace"}, False, False),
        (f"{image}/ami-2", {}, False, False),
        (ec2("instance/*"), on_demand, True, False),
        (ec2("instance/*"), spot, True, True),
        (ec2("instance/*"), block, False, False),
        (ec2("subnet/subnet-1"), {}, True, True),
        (ec2("subnet/subnet-2"), {}, True, False),
        (ec2("spot-instances-request/*"), {}, True, True),
        (ec2("capacity-reservation/cr-1"), {}, False, False),
    )
    for resource, context, by_open, by_narrow in cases:
        assert may(open_, "ec2:RunInstances", resource, **context) is by_open, (resource, context)
        assert may(narrow, "ec2:RunInstances", resource, **context) is by_narrow, (resource, context)
    assert may(narrow, "ec2:CreateTags", ec2("spot-instances-request/*"), **AT_LAUNCH)
    for resource, context, allowed in (
        (ec2("capacity-reservation/cr-1"), {}, True),
        (ec2("capacity-reservation/cr-2"), {}, False),
        (ec2("instance/*"), on_demand, True),  # an On-Demand Capacity Reservation
        (ec2("instance/*"), block, True),
    ):
        assert may(reserved, "ec2:RunInstances", resource, **context) is allowed, (resource, context)
    assert not may(reserved, "ec2:CreateTags", ec2("capacity-reservation/cr-1"), **AT_LAUNCH)


def test_the_longest_role_fits() -> None:
    types = tuple(f"c{n}.metal-48xlarge" for n in range(20))
    document = render_role_policy(
        ProvisionConfig(region="ap-southeast-1", instance_types=types, market=("spot",), reservation="cr-" + "0" * 17),
        name="n" * 40,
        region="ap-southeast-1",
        data_url=f"s3://{'d' * 63}/{'f' * 200}",
        results_url=f"s3://{'r' * 63}/{'f' * 200}",
        replaces_nodes=True,
    )
    assert len(re.sub(r"\s", "", document)) < MAX_ROLE_POLICY_LENGTH


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


def iam(resource: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{resource}"


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


OURS = {"aws__ResourceTag___cluster__name": "demo"}


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
