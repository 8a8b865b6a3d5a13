"""Policies of roles and sessions, trust policies, and temporary keys."""

import http.client
import json
import ssl
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import botocore
import pytest

from ec2_client import Client, client, ids_of, live, refused_as, run
from iam_steps import (
    ACCOUNT,
    TRUST,
    allow,
    client_of,
    document,
    instance_profile,
    make_bucket,
    refused,
    role,
    role_keys,
    trainer,
    trust,
    user,
)
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig
from provision.resources.resource import tag_specification
from sandbox_steps import RunningSandbox, Ssh, launch
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture
def bucket(phantom: RunningSandbox) -> str:
    return make_bucket()


def test_a_role_may_read_its_data_and_write_its_results(bucket: str) -> None:
    s3 = role("s3", *trainer(bucket))
    assert s3.get_object(Bucket=bucket, Key="digits/part-0")["Body"].read() == b"records"
    assert s3.head_object(Bucket=bucket, Key="digits/part-0")["ContentLength"] == 7
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix="digits/")["Contents"]] == [
        "digits/part-0"
    ]
    s3.put_object(Bucket=bucket, Key="results/model", Body=b"weights")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="results/large")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="results/large", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=bucket, Key="results/large", UploadId=upload)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s3, b: s3.get_object(Bucket=b, Key="beside"), "s3:GetObject"),
        (lambda s3, b: s3.get_object(Bucket=b, Key="digits-2/part-0"), "s3:GetObject"),
        (lambda s3, b: s3.put_object(Bucket=b, Key="digits/part-0", Body=b"x"), "s3:PutObject"),
        (lambda s3, b: s3.put_object(Bucket=b, Key="results", Body=b"x" * 1_000_000), "s3:PutObject"),
        (lambda s3, b: s3.delete_object(Bucket=b, Key="results/model"), "s3:DeleteObject"),
        (lambda s3, b: s3.delete_objects(Bucket=b, Delete={"Objects": [{"Key": "digits/part-0"}]}), "s3:DeleteObject"),
        (lambda s3, b: s3.copy_object(Bucket=b, Key="results/stolen", CopySource={"Bucket": b, "Key": "beside"}),
         "s3:GetObject"),
        (lambda s3, b: s3.list_objects_v2(Bucket=b), "s3:ListBucket"),
        (lambda s3, b: s3.list_objects_v2(Bucket=b, Prefix="digits"), "s3:ListBucket"),
        (lambda s3, b: s3.list_objects(Bucket=b, Prefix="digits-2/"), "s3:ListBucket"),
        (lambda s3, b: s3.list_multipart_uploads(Bucket=b), "s3:ListBucketMultipartUploads"),
        (lambda s3, b: s3.create_bucket(Bucket=f"{b}-2"), "s3:CreateBucket"),
        # Only callers who may list the bucket learn whether the object exists.
        (lambda s3, b: s3.get_object(Bucket=b, Key="digits/missing"), "s3:ListBucket"),
    ],
)  # fmt: skip
def test_a_role_may_not_do_anything_else(bucket: str, call: Any, said: str) -> None:
    s3 = role("s3", *trainer(bucket))
    message = refused(lambda: call(s3, bucket))
    assert f"is not authorized to perform: {said} on resource: arn:aws:s3:::{bucket}" in message
    assert "assumed-role/role-" in message


def test_a_caller_who_may_list_sees_that_a_key_is_missing(bucket: str) -> None:
    s3 = user("s3", allow("s3:GetObject"), allow("s3:ListBucket"))
    with refused_as("NoSuchKey"):
        s3.get_object(Bucket=bucket, Key="missing")


def test_a_role_has_no_rights_but_its_own(phantom: RunningSandbox) -> None:
    refused(role("ec2").describe_vpcs)
    refused(role("iam", allow("s3:*")).list_roles)
    assert "assumed-role" in role("sts").get_caller_identity()["Arn"]


def test_changes_of_a_roles_policies_take_effect_at_once(phantom: RunningSandbox, bucket: str) -> None:
    iam = client("iam")
    arn = iam.create_role(RoleName="changing", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    s3 = client_of("s3", client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"])
    refused(s3.get_object, Bucket=bucket, Key="beside")
    policy = iam.create_policy(PolicyName="reading", PolicyDocument=document(allow("s3:GetObject")))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="changing", PolicyArn=policy)
    s3.get_object(Bucket=bucket, Key="beside")
    iam.detach_role_policy(RoleName="changing", PolicyArn=policy)
    refused(s3.get_object, Bucket=bucket, Key="beside")
    iam.put_role_policy(RoleName="changing", PolicyName="all", PolicyDocument=document(allow("*")))
    s3.get_object(Bucket=bucket, Key="beside")
    iam.put_role_permissions_boundary(RoleName="changing", PermissionsBoundary=policy)
    s3.get_object(Bucket=bucket, Key="beside")
    refused(s3.put_object, Bucket=bucket, Key="beside", Body=b"x")
    iam.delete_role_policy(RoleName="changing", PolicyName="all")
    iam.delete_role(RoleName="changing")
    refused(s3.get_object, Bucket=bucket, Key="beside")


def test_a_session_may_be_limited_further(phantom: RunningSandbox, bucket: str) -> None:
    iam = client("iam")
    arn = iam.create_role(RoleName="wide", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    iam.put_role_policy(RoleName="wide", PolicyName="all", PolicyDocument=document(allow("s3:*")))
    narrow = document(allow(["s3:GetObject", "ec2:*"]))
    keys = client("sts").assume_role(RoleArn=arn, RoleSessionName="test", Policy=narrow)["Credentials"]
    client_of("s3", keys).get_object(Bucket=bucket, Key="beside")
    refused(client_of("s3", keys).delete_object, Bucket=bucket, Key="beside")
    refused(client_of("ec2", keys).describe_vpcs)


def test_an_unsupported_policy_allows_nothing(phantom: RunningSandbox) -> None:
    odd = allow("*", Condition={"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}})
    message = refused(user("ec2", allow("*"), odd).describe_vpcs)
    assert "does not understand one of their policies: Statement 2: the operator DateLessThan" in message


# --- whose keys


def test_only_users_can_open_sessions(phantom: RunningSandbox) -> None:
    assert "session credentials" in refused(role("sts", allow("*")).get_session_token)
    keys = user("sts").get_session_token(DurationSeconds=900)["Credentials"]
    assert "session credentials" in refused(client_of("sts", keys).get_session_token)
    refused(client_of("ec2", keys).describe_vpcs)
    assert keys["AccessKeyId"] != user("sts").get_session_token()["Credentials"]["AccessKeyId"]


def test_nobody_reads_a_bucket_without_a_key(phantom: RunningSandbox, bucket: str) -> None:
    anonymous = client("s3", signature_version=botocore.UNSIGNED, s3={"addressing_style": "path"})
    refused(anonymous.get_object, Bucket=bucket, Key="beside")


def test_presigned_urls_have_the_signers_rights_until_they_expire(phantom: RunningSandbox, bucket: str) -> None:
    s3 = client_of("s3", role_keys(*trainer(bucket)), signature_version="s3v4")
    trusted = ssl.create_default_context(cafile=phantom.info.ca_bundle)

    def sign(key: str, expires_s: int = 60) -> SplitResult:
        asked = {"Bucket": bucket, "Key": key}
        url: str = s3.generate_presigned_url("get_object", Params=asked, ExpiresIn=expires_s)
        return urlsplit(url)

    def read(url: SplitResult) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(url.netloc, context=trusted, timeout=10)
        connection.request("GET", f"{url.path}?{url.query}")
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert read(sign("digits/part-0")) == (200, b"records")
    assert read(sign("beside"))[0] == 403
    url = sign("digits/part-0", expires_s=1)
    until(lambda: b"Request has expired" in read(url)[1], "the URL does not expire")
    assert read(url)[0] == 403


# --- temporary keys and trust


READ = document(allow("s3:GetObject"))


def federate(sts: Client, policy: str | None = READ, **more: Any) -> Mapping[str, Any]:
    given = {} if policy is None else {"Policy": policy}
    keys: Mapping[str, Any] = sts.get_federation_token(**{"Name": "job", **given, **more})["Credentials"]
    return keys


def make_role(trusts: str, *statements: Mapping[str, Any], **more: Any) -> str:
    iam, name = client("iam"), f"role-{uuid.uuid4().hex[:8]}"
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trusts, **more)["Role"]["Arn"]
    if statements:
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=document(*statements))
    return arn


def assume(sts: Client, role: str, **more: Any) -> Mapping[str, Any]:
    keys: Mapping[str, Any] = sts.assume_role(RoleArn=role, RoleSessionName="test", **more)["Credentials"]
    return keys


def test_a_federated_user_may_do_what_both_the_user_and_the_policy_allow(bucket: str) -> None:
    owner = user("sts", allow("sts:*"), allow(["s3:GetObject", "s3:PutObject"]))
    s3 = client_of("s3", federate(owner, document(allow(["s3:GetObject", "s3:DeleteObject"]))))
    assert s3.get_object(Bucket=bucket, Key="beside")["Body"].read() == b"records"
    refused(s3.put_object, Bucket=bucket, Key="beside", Body=b"x")  # the policy does not allow it
    said = refused(s3.delete_object, Bucket=bucket, Key="beside")  # the user may not
    assert f"User: arn:aws:sts::{ACCOUNT}:federated-user/job is not authorized" in said


def test_a_federated_user_without_a_policy_may_do_nothing(bucket: str) -> None:
    s3 = client_of("s3", federate(client("sts"), None))
    refused(s3.get_object, Bucket=bucket, Key="beside")


def test_a_federated_user_may_not_use_iam_and_sts(phantom: RunningSandbox) -> None:
    keys = federate(client("sts"), document(allow("*")))
    sts = client_of("sts", keys)
    assert sts.get_caller_identity()["Arn"] == f"arn:aws:sts::{ACCOUNT}:federated-user/job"
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert "session credentials" in refused(sts.get_session_token)
    assert "session credentials" in refused(sts.get_federation_token, Name="other", Policy=READ)
    role = make_role(trust("*"))
    refused(sts.assume_role, RoleArn=role, RoleSessionName="test")
    with refused_as("InvalidClientTokenId"):
        client_of("iam", keys).list_users()


def test_federation_needs_a_permission_for_the_name(phantom: RunningSandbox) -> None:
    named = f"arn:aws:sts::{ACCOUNT}:federated-user/job-*"
    sts = user("sts", allow("sts:GetFederationToken", named))
    federate(sts, Name="job-1")
    assert f"sts:GetFederationToken on resource: arn:aws:sts::{ACCOUNT}:federated-user/x1" in refused(
        sts.get_federation_token, Name="x1", Policy=READ
    )


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"Name": "a b"}, "ValidationError"),
        ({"Name": "x" * 33}, "ValidationError"),
        ({"DurationSeconds": 36 * 3600 + 1}, "ValidationError"),
        ({"Policy": "x" * 2049}, "ValidationError"),
        ({"Policy": "{}"}, "MalformedPolicyDocument"),
    ],
)
def test_invalid_federation_requests_are_refused(phantom: RunningSandbox, asked: Mapping[str, Any], code: str) -> None:
    with refused_as(code):
        client("sts").get_federation_token(**{"Name": "job", "Policy": READ, **asked})


def test_only_trusted_callers_can_assume_a_role(phantom: RunningSandbox) -> None:
    stranger, allowed = user("sts"), user("sts", allow("sts:AssumeRole"))
    mine = stranger.get_caller_identity()["Arn"]
    assume(stranger, make_role(trust(mine)))  # a named caller needs no permission of its own
    of_account = make_role(TRUST)
    assume(allowed, of_account)
    refused(assume, sts=stranger, role=of_account)
    refused(assume, sts=allowed, role=make_role(trust()))  # trusts only EC2
    refused(assume, sts=client("sts"), role=make_role(trust(mine)))


def test_a_role_that_trusts_itself_may_assume_itself_for_an_hour(bucket: str) -> None:
    iam = client("iam")
    arn = make_role(TRUST, allow("s3:*"), MaxSessionDuration=12 * 3600)
    keys = assume(client("sts"), arn, DurationSeconds=12 * 3600)
    sts = client_of("sts", keys)
    refused(assume, sts=sts, role=arn)  # it has no permission, and is not named
    iam.update_assume_role_policy(RoleName=arn.rpartition("/")[2], PolicyDocument=trust(arn))
    narrow = assume(sts, arn, Policy=READ)
    client_of("s3", narrow).get_object(Bucket=bucket, Key="beside")
    refused(client_of("s3", narrow).delete_object, Bucket=bucket, Key="beside")
    refused(assume, sts=client_of("sts", narrow), role=arn)  # its policy limits that, too
    with refused_as("ValidationError"):
        assume(sts, arn, DurationSeconds=3601)


def test_an_unsupported_trust_policy_trusts_nobody(phantom: RunningSandbox) -> None:
    odd = TRUST.replace('"Action"', '"Condition": {"StringEquals": {"sts:ExternalId": "x"}}, "Action"')
    assert '"Condition" is not supported' in refused(assume, sts=client("sts"), role=make_role(odd))


# --- the role of a cluster's nodes


def tagged(name: str) -> list[Any]:
    kinds: tuple[Any, ...] = ("instance", "volume", "network-interface")
    return [tag_specification(kind, name=name, owner="me", role="node") for kind in kinds]


def make_group(name: str) -> str:
    """A security group with the cluster's tag."""
    tags = [{"ResourceType": "security-group", "Tags": [{"Key": "cluster:name", "Value": name}]}]
    made = client("ec2").create_security_group(
        GroupName=f"cluster-{name}-{uuid.uuid4().hex[:6]}", Description="x", TagSpecifications=tags
    )
    return str(made["GroupId"])


def test_the_role_of_nodes_ends_and_launches_only_nodes_of_its_cluster(phantom: RunningSandbox) -> None:
    config = ProvisionConfig(instance_type="c5.xlarge")
    document_ = render_role_policy(
        config, name="one", region="us-east-1", data_url=None, results_url=None, replaces_nodes=True
    )
    ec2 = role("ec2", *json.loads(document_)["Statement"])
    ours, theirs = make_group("one"), make_group("other")
    with (
        instance_profile("cluster-us-east-1-one", allow("s3:GetObject")) as own,
        instance_profile("admin", allow("*")) as admin,
    ):
        asked = {"SecurityGroupIds": [ours], "TagSpecifications": tagged("one"), **own}
        [node] = ids_of(run(ec2, **asked))
        [neighbour] = ids_of(run(client("ec2"), TagSpecifications=tagged("other")))

        assert "iam:PassRole" in refused(lambda: run(ec2, **{**asked, **admin}))
        assert "ec2:RunInstances" in refused(lambda: run(ec2, **{**asked, "TagSpecifications": tagged("other")}))
        assert "ec2:RunInstances" in refused(lambda: run(ec2, SecurityGroupIds=[ours], **own))
        assert "security-group" in refused(lambda: run(ec2, **{**asked, "SecurityGroupIds": [theirs]}))
        assert "security-group" in refused(lambda: run(ec2, TagSpecifications=tagged("one"), **own))
        assert "ec2:RunInstances" in refused(lambda: run(ec2, **{**asked, "InstanceType": "p4d.24xlarge"}))
        spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
        assert "ec2:RunInstances" in refused(lambda: run(ec2, **{**asked, **spot}))
        private = client("ec2").register_image(Name="private", RootDeviceName="/dev/sda1")["ImageId"]
        assert f"image/{private}" in refused(lambda: run(ec2, **{**asked, "ImageId": private}))
        refused(ec2.create_tags, Resources=[neighbour], Tags=[{"Key": "cluster:name", "Value": "one"}])
        refused(ec2.terminate_instances, InstanceIds=[neighbour])
        refused(ec2.stop_instances, InstanceIds=[node, neighbour], Force=True)
        refused(ec2.get_console_output, InstanceId=neighbour)
        assert {one["InstanceId"] for one in live(client("ec2"))} == {node, neighbour}
        ec2.get_console_output(InstanceId=node)
        ec2.stop_instances(InstanceIds=[node], Force=True)
        ec2.terminate_instances(InstanceIds=[node])
        assert {one["InstanceId"] for one in live(client("ec2"))} == {neighbour}


# --- on a host


READ_ROLE = """
import json, urllib.request as r
base = "http://169.254.169.254/latest/"
token = r.urlopen(r.Request(base + "api/token", method="PUT",
                            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})).read().decode()
def read(path):
    asked = r.Request(base + "meta-data/iam/security-credentials/" + path, headers={"X-aws-ec2-metadata-token": token})
    return r.urlopen(asked).read().decode()
found = json.loads(read(read("")))
print(json.dumps({"AccessKeyId": found["AccessKeyId"], "SecretAccessKey": found["SecretAccessKey"],
                  "SessionToken": found["Token"]}))
"""


@pytest.fixture
def host_profile(sandbox: RunningSandbox) -> Iterator[dict[str, Any]]:
    with instance_profile("of-a-host", *trainer("of-a-host")) as profile:
        yield profile


def test_a_hosts_role_reads_only_its_prefix(host_profile: dict[str, Any], ssh: Ssh) -> None:
    s3 = client("s3", s3={"addressing_style": "path"})
    s3.create_bucket(Bucket="of-a-host")
    for key in ("digits/part-0", "beside"):
        s3.put_object(Bucket="of-a-host", Key=key, Body=b"records")
    [host] = launch(ssh, 1, **host_profile)
    keys = json.loads(ssh.run(host["PublicIpAddress"], "/usr/bin/python3 -", stdin=READ_ROLE).stdout)
    mine = client_of("s3", keys, signature_version="s3v4")
    assert client_of("sts", keys).get_caller_identity()["Arn"].endswith(f"/of-a-host/{host['InstanceId']}")
    url = mine.generate_presigned_url("get_object", Params={"Bucket": "of-a-host", "Key": "digits/part-0"})
    beside = mine.generate_presigned_url("get_object", Params={"Bucket": "of-a-host", "Key": "beside"})
    fetch = "import sys, urllib.request as r; print(r.urlopen(sys.stdin.read()).read().decode())"
    done = ssh.run(host["PublicIpAddress"], f"/usr/bin/python3 -c '{fetch}'", stdin=url)
    assert done.stdout == "records\n"
    done = ssh.run(host["PublicIpAddress"], f"/usr/bin/python3 -c '{fetch}'", stdin=beside, check=False)
    assert "HTTP Error 403" in done.stderr
    assert "s3:GetObject on resource: arn:aws:s3:::of-a-host/beside" in refused(
        mine.get_object, Bucket="of-a-host", Key="beside"
    )
