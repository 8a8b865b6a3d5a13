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


# Of the role, and of a job, which may also use its further URLs.
@pytest.mark.parametrize(
    ("action", "resource", "role_may", "job_may"),
    [
        ("s3:GetObject", "data/digits/train/0.rec", True, True),
        ("s3:GetObject", "data/digits-secret/0.rec", False, False),
        ("s3:PutObject", "data/digits/train/0.rec", False, False),
        ("s3:PutObject", "results/models/a.params", True, True),
        ("s3:GetObject", "results/models/a.params", True, True),
        ("s3:DeleteObject", "results/models/a.params", False, False),
        ("s3:DeleteObject", "results/models/step-9/.metadata.tmp", True, True),  # torch's checkpoints rename it
        ("s3:GetBucketLocation", "data", True, True),  # s3fs creates a bucket whose location is denied
        ("s3:GetBucketLocation", "elsewhere", False, False),
        ("s3:GetObject", "more/one.rec", False, True),
        ("s3:PutObject", "more/two/a", False, False),
        ("s3:PutObject", "saved/net-0001.params", False, True),
    ],
)
def test_role_and_job_use_only_their_urls(action: str, resource: str, *, role_may: bool, job_may: bool) -> None:
    assert may(role(), action, f"arn:aws:s3:::{resource}") is role_may
    assert may(JOB, action, f"arn:aws:s3:::{resource}") is job_may


@pytest.mark.parametrize(
    ("bucket", "prefix", "role_may", "job_may"),
    [
        ("data", "digits", True, True),  # MXNet's reader looks for a folder like this
        ("data", "digits/", True, True),
        ("data", "", False, False),
        ("results", "models/a", True, True),
        ("more", "two", False, True),
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


def test_a_job_has_no_other_permissions() -> None:
    """KMS keys are used only through S3."""
    for action in ("ec2:DescribeInstances", "iam:GetUser", "sts:AssumeRole", "s3:ListAllMyBuckets"):
        assert not may(JOB, action)
    assert may(JOB, "kms:Decrypt", kms__ViaService="s3.us-east-1.amazonaws.com")
    assert not may(JOB, "kms:Decrypt", kms__ViaService="ec2.us-east-1.amazonaws.com")
    assert not may(JOB, "kms:Decrypt")


def test_rejects_more_urls_than_a_policy_can_hold() -> None:
    with pytest.raises(ConfigError, match="AWS allows 2048"):
        render_job_policy(S3Scope(also_read=tuple(f"s3://bucket-{n}/a/folder/" for n in range(30))), region=REGION)
    assert len(JOB) < MAX_SESSION_POLICY_LENGTH


@pytest.mark.parametrize(
    ("url", "key", "allowed"),
    [
        ("s3://data/train.rec", "data/train.rec", True),  # a URL without a slash may be an object
        ("s3://data/train.rec", "data/train.rec/0", True),
        ("s3://data/train.rec", "data/train.rec.secret", False),
        ("s3://data", "data/anything", True),  # a whole bucket
        ("s3://data", "database/anything", False),
    ],
)
def test_a_url_that_is_no_folder(url: str, key: str, *, allowed: bool) -> None:
    assert may(role(data=url, results=None), "s3:GetObject", f"arn:aws:s3:::{key}") is allowed


def test_a_role_without_urls_reads_nothing() -> None:
    assert "s3:" not in role(data=None, results=None)


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


def test_arns_have_the_regions_partition() -> None:
    assert [partition_of(region) for region in ("eu-central-1", "us-gov-west-1")] == ["aws", "aws-us-gov"]
    asked: dict[str, Any] = {"region": "cn-north-1", "market": ["spot"]}
    policies = (role(**asked), operator(instance_profile="auto", **asked))
    assert set(re.findall(r"arn:[a-z-]*:", "".join(policies))) == {"arn:aws-cn:"}


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
        ("ec2:AuthorizeSecurityGroupIngress", "security-group/sg-1", OURS, "never"),
        ("ec2:RunInstances", "instance/*", TYPED, "replacing"),
        ("ec2:RunInstances", "instance/*", {**TYPED, "ec2__InstanceType": "p5.48xlarge"}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **OTHERS}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, **tagged(team="finance")}, "never"),
        ("ec2:RunInstances", "instance/*", {**MADE, **PLACED}, "never"),
        ("ec2:RunInstances", "instance/*", {**TYPED, "ec2__InstanceMarketType": "spot"}, "never"),
        ("ec2:RunInstances", "volume/*", NODE, "replacing"),
        ("ec2:RunInstances", "volume/*", tagged(cluster__keep="true"), "never"),
        ("ec2:RunInstances", "security-group/sg-1", OURS, "replacing"),
        ("ec2:RunInstances", "security-group/sg-1", NEIGHBOURS, "never"),
        ("ec2:RunInstances", "key-pair/cluster-demo", {}, "replacing"),
        ("ec2:RunInstances", "key-pair/cluster-other", {}, "never"),
        ("ec2:CreateTags", "instance/*", AT_LAUNCH, "replacing"),
        ("ec2:CreateTags", "instance/i-1", OURS, "never"),
        ("ec2:DescribeInstances", "*", {}, "always"),
        ("ec2:DescribeInstances", "*", {"aws__RequestedRegion": "eu-west-1"}, "never"),
        ("ec2:GetConsoleOutput", "instance/i-1", OURS, "replacing"),
        ("ec2:GetConsoleOutput", "instance/i-1", NEIGHBOURS, "never"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-demo", TO_EC2, "replacing"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-demo", {"iam__PassedToService": "lambda.amazonaws.com"}, "never"),
        ("iam:PassRole", f"{ROLE}/cluster-us-east-1-other", TO_EC2, "never"),
        ("iam:PutRolePolicy", f"{ROLE}/cluster-us-east-1-demo", {}, "never"),
    ],
)
def test_a_role_ends_and_replaces_only_nodes_of_its_cluster(
    action: str, resource: str, context: dict[str, Any], allowed: str
) -> None:
    arn = resource if resource.startswith(("arn:", "*")) else ec2(resource)
    assert may(role(), action, arn, **context) is (allowed != "never")
    assert may(role(replaces=False), action, arn, **context) is (allowed == "always")


def test_a_role_sets_the_tags_of_cluster_toml() -> None:
    policy = role(tags={"team": "research"})
    for team, allowed in (("research", True), ("finance", False)):
        assert may(policy, "ec2:RunInstances", ec2("volume/*"), **tagged(team=team)) is allowed


IMAGE = f"arn:aws:ec2:{REGION}::image"
CANONICAL, SOMEONE = {"ec2__Owner": "099720109477"}, {"ec2__Owner": "210987654321"}
BAKED_BY_US = {"aws__ResourceTag___cluster__name": "demo", **CANONICAL}
ON_DEMAND, SPOT, BLOCK = (
    {**TYPED, "ec2__InstanceMarketType": market} for market in ("on-demand", "spot", "capacity-block")
)
OPEN = role(instance_types=["c5.xlarge"], market=["spot", "on-demand"])
NARROW = role(ami="ami-1", subnet_id="subnet-1", market=["spot"])
RESERVED, BAKED = role(market=["spot"], reservation="cr-1"), role(ami="baked")


@pytest.mark.parametrize(
    ("document", "resource", "context", "allowed"),
    [
        (OPEN, f"{IMAGE}/ami-1", CANONICAL, True),
        (OPEN, f"{IMAGE}/ami-1", {"ec2__Owner": "amazon"}, True),
        (OPEN, f"{IMAGE}/ami-1", SOMEONE, False),
        (OPEN, ec2("instance/*"), ON_DEMAND, True),
        (OPEN, ec2("instance/*"), SPOT, True),
        (OPEN, ec2("spot-instances-request/*"), {}, True),
        (NARROW, f"{IMAGE}/ami-1", SOMEONE, True),
        (NARROW, f"{IMAGE}/ami-2", CANONICAL, False),
        (NARROW, ec2("instance/*"), ON_DEMAND, False),
        (NARROW, ec2("subnet/subnet-2"), {}, False),
        (BAKED, f"{IMAGE}/ami-1", BAKED_BY_US, True),
        (RESERVED, ec2("capacity-reservation/cr-1"), {}, True),
        (RESERVED, ec2("instance/*"), ON_DEMAND, True),  # an On-Demand Capacity Reservation
        (RESERVED, ec2("instance/*"), BLOCK, True),
    ],
)
def test_a_role_launches_only_what_is_configured(
    document: str, resource: str, context: dict[str, Any], *, allowed: bool
) -> None:
    assert may(document, "ec2:RunInstances", resource, **context) is allowed


def test_a_role_tags_what_it_launches_on_spot() -> None:
    assert may(NARROW, "ec2:CreateTags", ec2("spot-instances-request/*"), **AT_LAUNCH)
    assert not may(RESERVED, "ec2:CreateTags", ec2("capacity-reservation/cr-1"), **AT_LAUNCH)


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
