"""The tests' own IAM: documents, requests and decisions; refused documents; the permissions that calls need."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from iam_calls import Resources, describe_asks
from iam_evaluator import Ask, PolicyError, Verdict, decide, parse_policy

BUCKET = "arn:aws:s3:::data"
OBJECT = f"{BUCKET}/digits/part-0"
OURS = {"aws:resourcetag/cluster:name": ("demo",)}


def document(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {**allow(action, resource, **more), "Effect": "Deny"}


def verdict(action: str, resource: str, *statements: Mapping[str, Any], **context: tuple[str, ...]) -> Verdict:
    return decide([parse_policy(document(*statements))], Ask(action=action, resource=resource, context=context))


@pytest.mark.parametrize(
    ("statements", "action", "resource", "expected"),
    [
        ([allow("s3:GetObject", OBJECT)], "s3:GetObject", OBJECT, "allowed"),
        ([allow("S3:getobject", OBJECT)], "s3:GetObject", OBJECT, "allowed"),
        ([allow("s3:GetObject", f"{BUCKET}/digits/*")], "s3:GetObject", OBJECT, "allowed"),
        ([allow("s3:GetObject", f"{BUCKET}/digits/*")], "s3:GetObject", f"{BUCKET}/digits", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/digits/*")], "s3:GetObject", f"{BUCKET}-2/digits/x", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/part-?")], "s3:GetObject", f"{BUCKET}/part-12", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/[ab]")], "s3:GetObject", f"{BUCKET}/a", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/A")], "s3:GetObject", f"{BUCKET}/a", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/a*")], "s3:GetObject", f"{BUCKET}/a\nb", "allowed"),
        ([allow("s3:Get*")], "s3:PutObject", OBJECT, "unmentioned"),
        ([allow(["ec2:Run*", "s3:*"])], "s3:PutObject", OBJECT, "allowed"),
        ([allow("*")], "iam:CreateUser", "*", "allowed"),
        ([allow("*"), deny("s3:Delete*")], "s3:DeleteObject", OBJECT, "denied"),
        ([deny("s3:*", f"{BUCKET}/*"), allow("*")], "s3:ListBucket", BUCKET, "allowed"),
        ([allow("ec2:Describe*", "arn:aws:ec2:*:*:instance/*")], "ec2:DescribeInstances", "*", "unmentioned"),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], "ec2:RunInstances", "*", "allowed"),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], "iam:CreateUser", "*", "unmentioned"),
        ([allow("*"), {"Effect": "Deny", "Action": "s3:*", "NotResource": [BUCKET, f"{BUCKET}/*"]}],
         "s3:GetObject", "arn:aws:s3:::other/x", "denied"),
        ([allow("*"), {"Effect": "Deny", "Action": "s3:*", "NotResource": [BUCKET, f"{BUCKET}/*"]}],
         "s3:GetObject", OBJECT, "allowed"),
        ([], "s3:GetObject", OBJECT, "unmentioned"),
    ],
)  # fmt: skip
def test_actions_and_resources(statements: list[Any], action: str, resource: str, expected: Verdict) -> None:
    policies = [parse_policy(document(statement)) for statement in statements]
    assert decide(policies, Ask(action=action, resource=resource, context={})) == expected
    if statements:
        assert verdict(action, resource, *statements) == expected


TAGGED = {"aws:tagkeys": ("Name", "cluster:name"), "aws:requesttag/cluster:name": ("demo",)}


@pytest.mark.parametrize(
    ("condition", "context", "holds"),
    [
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "demo"}}, OURS, True),
        ({"StringEquals": {"aws:resourcetag/Cluster:Name": ["other", "demo"]}}, OURS, True),
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "Demo"}}, OURS, False),
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "de*"}}, OURS, False),
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "demo"}}, {}, False),
        ({"StringEqualsIfExists": {"aws:ResourceTag/cluster:name": "demo"}}, {}, True),
        ({"StringEqualsIfExists": {"aws:ResourceTag/cluster:name": "x"}}, OURS, False),
        ({"StringNotEquals": {"aws:ResourceTag/cluster:name": ["a", "b"]}}, OURS, True),
        ({"StringNotEquals": {"aws:ResourceTag/cluster:name": ["a", "demo"]}}, OURS, False),
        ({"StringNotEquals": {"aws:ResourceTag/cluster:name": "a"}}, {}, True),
        ({"StringLike": {"aws:ResourceTag/cluster:name": "de?o"}}, OURS, True),
        ({"StringNotLike": {"aws:ResourceTag/cluster:name": "de*"}}, OURS, False),
        ({"StringLike": {"s3:prefix": ["", "digits/*"]}}, {"s3:prefix": ("",)}, True),
        ({"StringLike": {"s3:prefix": ["", "digits/*"]}}, {}, False),
        ({"StringLike": {"s3:prefix": "digits/*"}}, {"s3:prefix": ("digits-2/",)}, False),
        ({"Null": {"aws:ResourceTag/cluster:name": "true"}}, {}, True),
        ({"Null": {"aws:ResourceTag/cluster:name": "true"}}, OURS, False),
        ({"Null": {"aws:ResourceTag/cluster:name": False}}, OURS, True),
        ({"Bool": {"aws:SecureTransport": True}}, {"aws:securetransport": ("true",)}, True),
        ({"Bool": {"aws:SecureTransport": "false"}}, {"aws:securetransport": ("true",)}, False),
        ({"Bool": {"aws:SecureTransport": "false"}}, {}, False),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["Name", "cluster:name", "x"]}}, TAGGED, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": "Name"}}, TAGGED, False),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": "Name"}}, {}, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["Name", "x"]}}, TAGGED, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": "x"}}, TAGGED, False),
        ({"ForAnyValue:StringNotEquals": {"aws:TagKeys": "Name"}}, TAGGED, True),
        ({"ForAnyValue:StringNotEquals": {"aws:TagKeys": "Name"}}, {}, False),
        ({"ForAllValues:StringLike": {"aws:TagKeys": ["N*", "cluster:*"]}}, TAGGED, True),
        # Every operator, and every key of an operator, must hold.
        ({"StringEquals": {"aws:RequestTag/cluster:name": "demo", "ec2:Region": "us-east-1"}}, TAGGED, False),
        ({"StringEquals": {"aws:RequestTag/cluster:name": "demo"}, "Null": {"ec2:Region": "true"}}, TAGGED, True),
        ({}, {}, True),
    ],
)
def test_conditions(condition: Any, context: Mapping[str, tuple[str, ...]], *, holds: bool) -> None:
    asked = Ask(action="ec2:StopInstances", resource="*", context=context)
    assert decide([parse_policy(document(allow("*", Condition=condition)))], asked) == (
        "allowed" if holds else "unmentioned"
    )
    everything, forbidden = allow("*"), deny("*", Condition=condition)
    assert decide([parse_policy(document(everything, forbidden))], asked) == ("denied" if holds else "allowed")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "Statement is missing"),
        ('{"Statement": []}', "Statement is missing"),
        ('{"Statement": ["x"]}', "Statement 1: it is not a JSON object"),
        ('{"Version": "2030-01-01", "Statement": []}', "2030-01-01"),
        ('{"Statements": []}', '"Statements" is not supported'),
        ('{"Statement": {"Effect": "Deny", "Effect": "Allow"}}', '"Effect" appears twice'),
        (document({**allow("*"), "Effect": "allow"}), "Effect must be"),
        (document({"Effect": "Allow", "Resource": "*"}), "either Action or NotAction"),
        (document({**allow("*"), "NotAction": "s3:*"}), "either Action or NotAction"),
        (document({"Effect": "Allow", "Action": "*"}), "either Resource or NotResource"),
        (document(allow("*"), {**allow("*"), "Sid": "Mine", "Principal": "*"}), r"Statement 2 \(Mine\): .Principal"),
        (document(allow("GetObject")), "GetObject"),
        (document(allow([])), "Action: must be a string"),
        (document(allow("*", "data/*")), "data/.* is not an ARN"),
        (document(allow("*", "arn:aws:s3:::${aws:username}/*")), "policy variables"),
        (document(allow("*", Condition={"StringEqualsIgnoreCase": {"s3:prefix": "x"}})), "StringEqualsIgnoreCase"),
        (document(allow("*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})), "IpAddress"),
        (document(allow("*", Condition={"NullIfExists": {"s3:prefix": "true"}})), "NullIfExists"),
        (document(allow("*", Condition={"ForSomeValues:StringEquals": {"aws:TagKeys": "x"}})), "ForSomeValues"),
        (document(allow("*", Condition={"StringEquals": {"aws:SourceVpc": "vpc-1"}})), "aws:SourceVpc"),
        (document(allow("*", Condition={"StringEquals": {"aws:TagKeys": "x"}})), "ForAllValues"),
        (document(allow("*", Condition={"ForAllValues:StringEquals": {"s3:prefix": "x"}})), "one value"),
        (document(allow("*", Condition={"Bool": {"aws:SecureTransport": "yes"}})), '"true" or "false"'),
        (document(allow("*", Condition={"StringEquals": {}})), "no condition key"),
        (document(allow("*", Condition={"StringEquals": {"s3:prefix": 1}})), "must be a string or a list"),
    ],
)
def test_unsupported_documents_are_refused(text: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        parse_policy(text)


EC2 = "arn:aws:ec2:us-east-1:123456789012"
KNOWN = Resources(
    tags={"sg-1": {"cluster:name": "demo"}, "key-1": {"cluster:name": "demo"}},
    ids={("security-group", "mine"): "sg-1", ("key-pair", "mine"): "key-1"},
)


def entry(service: str, action: str, resource: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {
        "service": service,
        "action": action,
        "region": "us-east-1",
        "resource": resource,
        "parameters": {key.replace("__", "."): value for key, value in parameters.items()},
    }


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (entry("s3", "ListObjectsV2", "data", prefix="digits/"), [("s3:ListBucket", BUCKET)]),
        (entry("s3", "HeadObject", "data/digits/part-0"), [("s3:GetObject", OBJECT)]),
        (entry("s3", "GetObject", "data/digits/part-0", versionId="1"), [("s3:GetObjectVersion", OBJECT)]),
        (entry("s3", "UploadPart", "data/digits/part-0"), [("s3:PutObject", OBJECT)]),
        (entry("s3", "DeleteObjects", "data"), [("s3:DeleteObject", f"{BUCKET}/*")]),
        (entry("s3", "CopyObject", "data/digits/part-0", copied="/other/x"),
         [("s3:PutObject", OBJECT), ("s3:GetObject", "arn:aws:s3:::other/x")]),
        (entry("sts", "GetCallerIdentity"), []),
        (entry("sts", "GetFederationToken", Name="job"),
         [("sts:GetFederationToken", "arn:aws:sts::123456789012:federated-user/job")]),
        (entry("ssm", "GetParameter", Name="/aws/service/x"), [("ssm:GetParameter",
         "arn:aws:ssm:us-east-1::parameter/aws/service/x")]),
        (entry("iam", "AddRoleToInstanceProfile", InstanceProfileName="p", RoleName="r"),
         [("iam:AddRoleToInstanceProfile", "arn:aws:iam::123456789012:instance-profile/p"),
          ("iam:PassRole", "arn:aws:iam::123456789012:role/r")]),
        (entry("ec2", "DescribeInstances"), [("ec2:DescribeInstances", "*")]),
        (entry("ec2", "DeleteSecurityGroup", GroupName="mine"), [("ec2:DeleteSecurityGroup",
         f"{EC2}:security-group/sg-1")]),
        (entry("ec2", "DeleteKeyPair", KeyPairId="key-1"), [("ec2:DeleteKeyPair", f"{EC2}:key-pair/mine")]),
        (entry("ec2", "CreateTags", ResourceId__1="i-1", Tag__1__Key="x"), [("ec2:CreateTags", f"{EC2}:instance/i-1")]),
        (entry("ec2", "CreatePlacementGroup", GroupName="new", TagSpecification__1__ResourceType="placement-group",
               TagSpecification__1__Tag__1__Key="x"),
         [(f"ec2:{action}", f"{EC2}:placement-group/new") for action in ("CreatePlacementGroup", "CreateTags")]),
        (entry("ec2", "RunInstances", ImageId="ami-1", SubnetId="subnet-1", SecurityGroupId__1="sg-1", KeyName="mine",
               IamInstanceProfile__Name="p"),
         [("ec2:RunInstances", one) for one in (
             f"{EC2}:instance/*", f"{EC2}:volume/*", f"{EC2}:network-interface/*", "arn:aws:ec2:us-east-1::image/ami-1",
             f"{EC2}:subnet/subnet-1", f"{EC2}:security-group/sg-1", f"{EC2}:key-pair/mine",
         )] + [("iam:PassRole", "arn:aws:iam::123456789012:role/p")]),
    ],
)  # fmt: skip
def test_permissions_that_calls_need(call: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(ask.action, ask.resource) for ask in describe_asks(call, KNOWN)] == expected


def test_tags_of_resources_are_condition_keys() -> None:
    (ask,) = describe_asks(entry("ec2", "DeleteSecurityGroup", GroupId="sg-1"), KNOWN)
    assert ask.context["aws:resourcetag/cluster:name"] == ("demo",)
