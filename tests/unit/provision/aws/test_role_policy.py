"""IAM policies of the nodes' role and of a job, evaluated by the tests' own IAM."""

import json
import re
from typing import Any

import pytest

from foundation.errors import ConfigError
from policies import ACCOUNT, DATA, MADE, NEIGHBOURS, OURS, REGION, RESULTS, ec2, may, operator, role, tagged
from provision.aws.iam_policy import (
    MAX_SESSION_POLICY_LENGTH,
    S3Scope,
    partition_of,
    render_job_policy,
    render_trust_policy,
)
from provision.aws.role_policy import MAX_POLICY_LENGTH as MAX_ROLE_POLICY_LENGTH
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig

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
def test_rejects_special_characters_of_iam(letter: str) -> None:
    urls: Any = {"data": f"s3://data/a{letter}b/", "results": RESULTS}
    for render in (role, operator):
        with pytest.raises(ConfigError, match=r"\[data\] url = "):
            render(**urls)


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
    policies = (role(region=region, market=["spot"]), operator(region=region, instance_profile="auto", market=["spot"]))
    for arn in re.findall(r"arn:[a-z-]*:", "".join(policies)):
        assert arn == f"arn:{partition}:"


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
    baked = role(ami="baked")
    for tag, owner in (("demo", True), ("other", False)):
        context = {"aws__ResourceTag___cluster__name": tag, **canonical}
        assert may(baked, "ec2:RunInstances", f"{image}/ami-1", **context) is owner
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
