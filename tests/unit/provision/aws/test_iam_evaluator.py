"""The tests' own IAM: documents, requests and decisions; the permissions that calls need."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from iam_calls import Resources, describe_asks
from iam_evaluator import Ask, Verdict, decide, parse_policy

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
        ([allow("s3:GetObject", f"{BUCKET}/digits/*")], "s3:GetObject", OBJECT, "allowed"),
        ([allow("s3:GetObject", f"{BUCKET}/digits/*")], "s3:GetObject", f"{BUCKET}/digits", "unmentioned"),
        ([allow("s3:GetObject", f"{BUCKET}/part-?")], "s3:GetObject", f"{BUCKET}/part-12", "unmentioned"),
        ([allow("s3:Get*")], "s3:PutObject", OBJECT, "unmentioned"),
        ([allow("*"), deny("s3:Delete*")], "s3:DeleteObject", OBJECT, "denied"),
        ([deny("s3:*", f"{BUCKET}/*"), allow("*")], "s3:ListBucket", BUCKET, "allowed"),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], "ec2:RunInstances", "*", "allowed"),
        ([allow("*"), {"Effect": "Deny", "Action": "s3:*", "NotResource": [BUCKET, f"{BUCKET}/*"]}],
         "s3:GetObject", "arn:aws:s3:::other/x", "denied"),
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
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "de*"}}, OURS, False),
        ({"StringEquals": {"aws:ResourceTag/cluster:name": "demo"}}, {}, False),
        ({"StringEqualsIfExists": {"aws:ResourceTag/cluster:name": "demo"}}, {}, True),
        ({"StringNotEquals": {"aws:ResourceTag/cluster:name": ["a", "demo"]}}, OURS, False),
        ({"StringLike": {"aws:ResourceTag/cluster:name": "de?o"}}, OURS, True),
        ({"StringLike": {"s3:prefix": "digits/*"}}, {"s3:prefix": ("digits-2/",)}, False),
        ({"Null": {"aws:ResourceTag/cluster:name": "true"}}, OURS, False),
        ({"Bool": {"aws:SecureTransport": True}}, {"aws:securetransport": ("true",)}, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["Name", "cluster:name", "x"]}}, TAGGED, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": "Name"}}, TAGGED, False),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["Name", "x"]}}, TAGGED, True),
        # Every operator, and every key of an operator, must hold.
        ({"StringEquals": {"aws:RequestTag/cluster:name": "demo", "ec2:Region": "us-east-1"}}, TAGGED, False),
        ({"StringEquals": {"aws:RequestTag/cluster:name": "demo"}, "Null": {"ec2:Region": "true"}}, TAGGED, True),
    ],
)
def test_conditions(condition: Any, context: Mapping[str, tuple[str, ...]], *, holds: bool) -> None:
    asked = Ask(action="ec2:StopInstances", resource="*", context=context)
    assert decide([parse_policy(document(allow("*", Condition=condition)))], asked) == (
        "allowed" if holds else "unmentioned"
    )
    everything, forbidden = allow("*"), deny("*", Condition=condition)
    assert decide([parse_policy(document(everything, forbidden))], asked) == ("denied" if holds else "allowed")


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
        (entry("s3", "CopyObject", "data/digits/part-0", copied="/other/x"),
         [("s3:PutObject", OBJECT), ("s3:GetObject", "arn:aws:s3:::other/x")]),
        (entry("iam", "AddRoleToInstanceProfile", InstanceProfileName="p", RoleName="r"),
         [("iam:AddRoleToInstanceProfile", "arn:aws:iam::123456789012:instance-profile/p"),
          ("iam:PassRole", "arn:aws:iam::123456789012:role/r")]),
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
