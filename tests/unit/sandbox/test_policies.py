"""IAM policies: a table of documents, requests and decisions; refused documents; the permissions that calls need."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from sandbox.iam.permissions import Call, describe_asks, read_list, read_tags, read_tree, tag_context
from sandbox.iam.policies import Ask, PolicyError, Verdict, decide, parse_policy

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


def test_policies_that_allow_everything() -> None:
    assert parse_policy(document(allow("*"))).allows_everything
    for statement in (allow("s3:*"), allow("*", BUCKET), allow("*", Condition={"Null": {"s3:prefix": "true"}})):
        assert not parse_policy(document(statement)).allows_everything
    assert not parse_policy(document(allow("*"), deny("iam:*"))).allows_everything
    assert not parse_policy(document({"Effect": "Allow", "NotAction": "*", "Resource": "*"})).allows_everything


# --- the permissions that calls need


def asks(call: Call) -> list[tuple[str, str]]:
    return [(ask.action, ask.resource) for ask in describe_asks(call)]


@pytest.mark.parametrize(
    ("action", "path", "query", "expected"),
    [
        ("ListBuckets", "/", "", [("s3:ListAllMyBuckets", "*")]),
        ("ListObjectsV2", "/data", "list-type=2&prefix=a", [("s3:ListBucket", BUCKET)]),
        ("HeadBucket", "/data", "", [("s3:ListBucket", BUCKET)]),
        ("ListMultipartUploads", "/data", "uploads", [("s3:ListBucketMultipartUploads", BUCKET)]),
        ("PutBucketEncryption", "/data", "encryption", [("s3:PutEncryptionConfiguration", BUCKET)]),
        ("GetBucketLocation", "/data/", "location", [("s3:GetBucketLocation", BUCKET)]),
        ("HeadObject", "/data/digits/part-0", "", [("s3:GetObject", OBJECT)]),
        ("GetObject", "/data/digits/part-0", "versionId=1", [("s3:GetObjectVersion", OBJECT)]),
        ("UploadPart", "/data/digits/part-0", "partNumber=1&uploadId=x", [("s3:PutObject", OBJECT)]),
        ("AbortMultipartUpload", "/data/digits/part-0", "uploadId=x", [("s3:AbortMultipartUpload", OBJECT)]),
        ("ListParts", "/data/digits/part-0", "uploadId=x", [("s3:ListMultipartUploadParts", OBJECT)]),
    ],
)
def test_permissions_of_s3_operations(action: str, path: str, query: str, expected: list[tuple[str, str]]) -> None:
    assert asks(Call(service="s3", action=action, region="us-east-1", path=path, query=query)) == expected


def test_only_listing_has_the_condition_prefix() -> None:
    listing = Call(service="s3", action="ListObjectsV2", region="us-east-1", path="/data", query="prefix=a%2Fb&x=1")
    [ask] = describe_asks(listing)
    assert ask.context["s3:prefix"] == ("a/b",)
    [ask] = describe_asks(Call(service="s3", action="GetObject", region="us-east-1", path="/data/x", query="prefix=a"))
    assert "s3:prefix" not in ask.context


def test_a_copy_needs_permissions_to_read_and_write() -> None:
    copy = Call(
        service="s3", action="CopyObject", region="us-east-1", path="/data/a", source="/other/b%20c?versionId=1"
    )
    assert asks(copy) == [("s3:PutObject", f"{BUCKET}/a"), ("s3:GetObjectVersion", "arn:aws:s3:::other/b c")]


def test_each_deletion_needs_a_permission() -> None:
    keys = b"<Object><Key>a</Key></Object><Object><Key>b/&amp;</Key></Object>"
    body = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%b</Delete>' % keys
    call = Call(service="s3", action="DeleteObjects", region="us-east-1", path="/data", query="delete", body=body)
    assert asks(call) == [("s3:DeleteObject", f"{BUCKET}/a"), ("s3:DeleteObject", f"{BUCKET}/b/&")]
    broken = Call(service="s3", action="DeleteObjects", region="us-east-1", path="/data", body=b"<Delete>")
    assert asks(broken) == [("s3:DeleteObject", BUCKET)]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"Name": "/aws/service/x/ami-id"}, ["arn:aws:ssm:us-east-1::parameter/aws/service/x/ami-id"]),
        ({"Name": "mine:3"}, ["arn:aws:ssm:us-east-1:123456789012:parameter/mine"]),
        ({"Names": ["/a/b", "c"]}, ["arn:aws:ssm:us-east-1:123456789012:parameter/a/b",
                                    "arn:aws:ssm:us-east-1:123456789012:parameter/c"]),
        ({"Name": "arn:aws:ssm:us-east-1::parameter/aws/service/y"},
         ["arn:aws:ssm:us-east-1::parameter/aws/service/y"]),
        ({"Path": "/a"}, ["arn:aws:ssm:us-east-1:123456789012:parameter/a"]),
        ({}, ["*"]),
    ],
)  # fmt: skip
def test_arns_of_ssm_parameters(document: dict[str, Any], expected: list[str]) -> None:
    call = Call(service="ssm", action="GetParameter", region="us-east-1", document=document)
    assert asks(call) == [("ssm:GetParameter", arn) for arn in expected]


def test_other_services_have_no_resources() -> None:
    assert asks(Call(service="pricing", action="GetProducts", region="us-east-1")) == [("pricing:GetProducts", "*")]


def test_forms_are_nested_by_dots() -> None:
    tree = read_tree({"A.1.B": "x", "A.10.B": "z", "A.2.B": "y", "C": "1", "C.1": "2"})
    assert [entry["B"] for entry in read_list(tree["A"])] == ["x", "y", "z"]
    assert tree["C"] == "1"
    assert read_list("one") == ["one"]
    assert read_list(None) == []


def test_tags_become_condition_keys() -> None:
    tags = read_tags({"1": {"Key": "Name", "Value": "a"}, "2": {"Key": "x"}})
    context = tag_context(requested=tags, present={"Name": "b"})
    assert context == {"aws:requesttag/name": ("a",), "aws:requesttag/x": ("",), "aws:tagkeys": ("Name", "x"),
                       "aws:resourcetag/name": ("b",), "ec2:resourcetag/name": ("b",)}  # fmt: skip
