"""IAM policies of the sandbox's own user and of others, enforced on EC2 and other services."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_client import Client, client, code_of, ids_of, live, refused_as, run
from foundation.errors import ConfigError
from iam_steps import ACCOUNT, TRUST, allow, client_of, document, make_profile, refused, user
from sandbox import control
from sandbox_steps import RunningSandbox, enter, find_leftovers, start_sandbox, terminate_all, wait_for

pytestmark = pytest.mark.sandbox

EC2_ARN = f"arn:aws:ec2:us-east-1:{ACCOUNT}"
LAUNCH_KINDS = ("instance", "volume", "network-interface", "security-group", "subnet")
MANY_TAGS = [{"Key": f"key-{number}", "Value": ""} for number in range(60)]
OURS = {"Key": "cluster:name", "Value": "demo"}


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


@pytest.fixture
def group_id(ec2: Client) -> Iterator[str]:
    made = ec2.create_security_group(GroupName=f"group-{uuid.uuid4().hex[:8]}", Description="x")["GroupId"]
    yield made
    ec2.delete_security_group(GroupId=made)


# --- [sandbox] policy


def test_the_policy_limits_the_sandboxs_own_credentials(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_project / "operator.json").write_text(document(allow(["ec2:Describe*", "s3:*", "ssm:GetParameter"])))
    started = start_sandbox(own_project, hosts="none", policy="operator.json")
    enter(started, monkeypatch)
    ec2 = client("ec2")
    assert ec2.describe_vpcs()["Vpcs"]
    client("s3").create_bucket(Bucket="allowed")
    message = refused(lambda: run(ec2))
    operator = f"arn:aws:iam::{ACCOUNT}:user/operator"
    assert message.startswith(
        f"You are not authorized to perform this operation. User: {operator} is not authorized to perform: "
        f"ec2:RunInstances on resource: {EC2_ARN}:instance/* because no identity-based policy allows the "
        "ec2:RunInstances action. Encoded authorization failure message: "
    )
    assert not live(ec2)
    sts = client("sts")
    assert sts.get_caller_identity()["Arn"] == operator
    session = sts.get_session_token()["Credentials"]
    assert client_of("sts", session).get_caller_identity()["Arn"] == operator
    assert client_of("ec2", session).describe_vpcs()["Vpcs"]
    refused(client_of("ec2", session).create_key_pair, KeyName="x")
    calls = [json.loads(line) for line in control.api_log(own_project).read_text().splitlines()]
    [denied] = [call for call in calls if call["action"] == "RunInstances"]
    assert (denied["status"], denied["error"]) == (403, "UnauthorizedOperation")
    assert denied["refused"] == f"ec2:RunInstances on {EC2_ARN}:instance/*"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        (
            document(allow("*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})),
            "Statement 1: the operator IpA",
        ),
        (b"\xff\xfe", "not a text file"),
    ],
)
def test_an_unsupported_policy_is_refused_at_the_start(own_project: Path, text: str | bytes | None, said: str) -> None:
    if text is not None:
        (own_project / "operator.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=said) as caught:
        start_sandbox(own_project, hosts="none", policy="operator.json")
    assert caught.value.message.startswith('[sandbox] policy = "operator.json": ')
    assert not find_leftovers(own_project)


# --- EC2, resource by resource


@pytest.mark.parametrize("missing", [*LAUNCH_KINDS, "image"])
def test_a_launch_needs_a_permission_for_each_resource(ec2: Client, missing: str) -> None:
    arns = [f"{EC2_ARN}:{kind}/*" for kind in LAUNCH_KINDS] + ["arn:aws:ec2:us-east-1::image/*"]
    run(user("ec2", allow("ec2:RunInstances", arns), allow("ssm:GetParameter")))
    limited = user("ec2", allow("ec2:RunInstances", [arn for arn in arns if f":{missing}/" not in arn]))
    message = refused(lambda: run(limited))
    assert "is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:" in message
    assert f":{missing}/" in message
    assert len(live(ec2)) == 1
    assert f":{missing}/" in refused(lambda: run(limited, DryRun=True))


@pytest.fixture
def key_and_group(ec2: Client) -> Iterator[dict[str, Any]]:
    """A launch's options for an existing key pair and placement group, both named launch-..."""
    ec2.create_key_pair(KeyName="launch-key")
    ec2.create_placement_group(GroupName="launch-group", Strategy="cluster")
    yield {"KeyName": "launch-key", "Placement": {"GroupName": "launch-group"}}
    terminate_all(ec2)
    ec2.delete_placement_group(GroupName="launch-group")
    ec2.delete_key_pair(KeyName="launch-key")


def test_a_launch_with_a_key_and_a_placement_group(ec2: Client, key_and_group: dict[str, Any]) -> None:
    most = [f"{EC2_ARN}:{kind}/*" for kind in LAUNCH_KINDS] + ["arn:aws:ec2:us-east-1::image/*"]
    asked = key_and_group
    assert f"{EC2_ARN}:key-pair/launch-key" in refused(
        lambda: run(user("ec2", allow("ec2:RunInstances", most)), **asked)
    )
    most.append(f"{EC2_ARN}:key-pair/launch-*")
    limited = user("ec2", allow("ec2:RunInstances", most))
    assert f"{EC2_ARN}:placement-group/launch-group" in refused(lambda: run(limited, **asked))
    most.append(f"{EC2_ARN}:placement-group/launch-group")
    allowed = user("ec2", allow("ec2:RunInstances", most))
    assert len(run(allowed, **asked)) == 1


def test_tags_at_creation_need_a_permission(ec2: Client) -> None:
    ours = {"StringEquals": {"aws:RequestTag/cluster:name": "demo"}}
    limited = user(
        "ec2",
        allow("ec2:RunInstances", [f"{EC2_ARN}:instance/*", f"{EC2_ARN}:volume/*"], Condition=ours),
        allow("ec2:RunInstances", [f"{EC2_ARN}:{kind}/*" for kind in LAUNCH_KINDS[2:]]),
        allow("ec2:RunInstances", "arn:aws:ec2:*::image/*"),
        allow("ec2:CreateTags", Condition={"StringEquals": {"ec2:CreateAction": ["RunInstances"]}}),
    )
    tagged = [{"ResourceType": kind, "Tags": [OURS]} for kind in ("instance", "volume")]
    [instance] = run(limited, TagSpecifications=tagged)
    assert ":volume/*" in refused(lambda: run(limited, TagSpecifications=tagged[:1]))
    other = [{"ResourceType": "instance", "Tags": [{"Key": "cluster:name", "Value": "other"}]}, tagged[1]]
    assert ":instance/*" in refused(lambda: run(limited, TagSpecifications=other))
    message = refused(limited.create_tags, Resources=[instance["InstanceId"]], Tags=[OURS])
    assert f"ec2:CreateTags on resource: {EC2_ARN}:instance/{instance['InstanceId']}" in message
    untaggable = user("ec2", allow("ec2:RunInstances"))
    assert "ec2:CreateTags" in refused(lambda: run(untaggable, TagSpecifications=tagged))


def test_permissions_on_instances_by_tag(ec2: Client) -> None:
    ours = run(ec2, TagSpecifications=[{"ResourceType": "instance", "Tags": [OURS]}])
    others = run(ec2)
    wait_for(boto3.client("ec2"), "instance_running", ids_of(ours + others))
    tagged = {"StringEquals": {"aws:ResourceTag/cluster:name": "demo"}}
    limited = user("ec2", allow(["ec2:StopInstances", "ec2:TerminateInstances"], f"{EC2_ARN}:instance/*",
                                Condition=tagged))  # fmt: skip
    for call in (limited.terminate_instances, limited.stop_instances):
        assert ids_of(others)[0] in refused(call, InstanceIds=ids_of(others))
        refused(call, InstanceIds=ids_of(ours + others))
    refused(limited.start_instances, InstanceIds=ids_of(ours))
    limited.terminate_instances(InstanceIds=ids_of(ours))
    assert ids_of(live(ec2)) == ids_of(others)


def test_permissions_on_other_resources_by_tag(ec2: Client, group_id: str) -> None:
    def tags(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": [OURS]}]

    limited = user(
        "ec2",
        allow(["ec2:CreateSecurityGroup", "ec2:ImportKeyPair", "ec2:CreatePlacementGroup"],
              [f"{EC2_ARN}:security-group/*", f"{EC2_ARN}:key-pair/*", f"{EC2_ARN}:placement-group/*"],
              Condition={"StringEquals": {"aws:RequestTag/cluster:name": "demo"},
                         "ForAllValues:StringEquals": {"aws:TagKeys": ["cluster:name"]}}),
        allow(["ec2:CreateTags"], Condition={"Null": {"ec2:CreateAction": "false"}}),
        allow(["ec2:DeleteSecurityGroup", "ec2:AuthorizeSecurityGroupIngress", "ec2:DeleteKeyPair",
               "ec2:DeletePlacementGroup"], Condition={"StringEquals": {"ec2:ResourceTag/cluster:name": "demo"}}),
    )  # fmt: skip
    made = limited.create_security_group(GroupName="iam", Description="x", TagSpecifications=tags("security-group"))
    assert "security-group/*" in refused(limited.create_security_group, GroupName="iam-2", Description="x")
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "10.0.0.0/8"}
    limited.authorize_security_group_ingress(GroupId=made["GroupId"], **rule)
    assert group_id in refused(limited.authorize_security_group_ingress, GroupId=group_id, **rule)
    assert group_id in refused(limited.delete_security_group, GroupId=group_id)
    limited.delete_security_group(GroupName="iam")
    ec2.create_key_pair(KeyName="foreign")
    ec2.create_placement_group(GroupName="foreign", Strategy="cluster")
    limited.create_placement_group(GroupName="ours", Strategy="cluster", TagSpecifications=tags("placement-group"))
    assert "placement-group/foreign" in refused(limited.delete_placement_group, GroupName="foreign")
    limited.delete_placement_group(GroupName="ours")
    assert "key-pair/foreign" in refused(limited.delete_key_pair, KeyName="foreign")
    ec2.create_key_pair(KeyName="ours", TagSpecifications=tags("key-pair"))
    limited.delete_key_pair(KeyName="ours")
    ec2.delete_key_pair(KeyName="foreign")
    ec2.delete_placement_group(GroupName="foreign")


def test_permissions_on_spot_requests_by_tag(ec2: Client) -> None:
    spot: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}
    [foreign] = run(ec2, **spot)
    [ours] = run(ec2, **spot, TagSpecifications=[{"ResourceType": "spot-instances-request", "Tags": [OURS]}])
    tagged = {"StringEquals": {"aws:ResourceTag/cluster:name": "demo"}}
    limited = user("ec2", allow("ec2:CancelSpotInstanceRequests", Condition=tagged))
    refused(limited.cancel_spot_instance_requests, SpotInstanceRequestIds=[foreign["SpotInstanceRequestId"]])
    limited.cancel_spot_instance_requests(SpotInstanceRequestIds=[ours["SpotInstanceRequestId"]])


def test_passing_a_role_needs_a_permission(ec2: Client) -> None:
    iam = client("iam")
    role_arn = iam.create_role(RoleName="passed", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    iam.create_instance_profile(InstanceProfileName="passed")
    statement = allow("iam:AddRoleToInstanceProfile", f"arn:aws:iam::{ACCOUNT}:instance-profile/passed")
    adding = {"InstanceProfileName": "passed", "RoleName": "passed"}
    assert f"iam:PassRole on resource: {role_arn}" in refused(
        user("iam", statement).add_role_to_instance_profile, **adding
    )
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    passing = allow("iam:PassRole", role_arn, Condition=to_ec2)
    user("iam", statement, passing).add_role_to_instance_profile(**adding)
    asked: dict[str, Any] = {"IamInstanceProfile": {"Name": "passed"}}
    message = refused(lambda: run(user("ec2", allow("ec2:*")), **asked))
    assert f"is not authorized to perform: iam:PassRole on resource: {role_arn}" in message
    assert not live(ec2)
    run(user("ec2", allow("ec2:*"), passing), **asked)


def test_an_explicit_deny_wins(ec2: Client) -> None:
    limited = user("ec2", allow("*"), {**allow("ec2:DescribeVpcs"), "Effect": "Deny"})
    assert limited.describe_instances()
    assert "ec2:DescribeVpcs with an explicit deny in an identity-based policy" in refused(limited.describe_vpcs)


# --- other services


@pytest.mark.parametrize(
    ("service", "call", "code", "said"),
    [
        ("ec2", lambda c: c.describe_vpcs(), "UnauthorizedOperation", "ec2:DescribeVpcs because"),
        ("iam", lambda c: c.create_role(RoleName="x", AssumeRolePolicyDocument=TRUST), "AccessDenied",
         f"iam:CreateRole on resource: arn:aws:iam::{ACCOUNT}:role/x because"),
        ("iam", lambda c: c.list_roles(), "AccessDenied", "iam:ListRoles because"),
        ("ssm", lambda c: c.get_parameter(Name="/aws/service/x"), "AccessDeniedException",
         "ssm:GetParameter on resource: arn:aws:ssm:us-east-1::parameter/aws/service/x because"),
        ("service-quotas", lambda c: c.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A"),
         "AccessDeniedException", "servicequotas:GetServiceQuota because"),
        ("pricing", lambda c: c.get_products(ServiceCode="AmazonEC2"), "AccessDeniedException", "pricing:GetProducts"),
        ("s3", lambda c: c.list_buckets(), "AccessDenied", "s3:ListAllMyBuckets because"),
        ("s3", lambda c: c.get_object(Bucket="b", Key="k <&>"), "AccessDenied",
         "s3:GetObject on resource: arn:aws:s3:::b/k <&> because"),
        ("s3", lambda c: c.head_object(Bucket="b", Key="k"), "403", "Forbidden"),
    ],
)  # fmt: skip
def test_each_service_refuses_with_its_own_error(
    phantom: RunningSandbox, service: str, call: Any, code: str, said: str
) -> None:
    with refused_as(code) as caught:
        call(user(service))
    message = caught.value.response["Error"]["Message"]
    assert said in message
    assert code == "403" or f"User: arn:aws:iam::{ACCOUNT}:user/user-" in message


def test_get_caller_identity_needs_no_permission(phantom: RunningSandbox) -> None:
    everything = {**allow("*"), "Effect": "Deny"}
    assert ":user/user-" in user("sts", everything).get_caller_identity()["Arn"]


# --- instance profiles


def refusal(ec2: Client, **asked: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        run(ec2, 2, **asked)
    return code_of(caught), caught.value.response["Error"]["Message"]


@pytest.mark.parametrize("dry", [False, True])
def test_a_missing_profile_launches_nothing(ec2: Client, dry: bool) -> None:  # noqa: FBT001 -- pytest's parameter
    assert refusal(ec2, IamInstanceProfile={"Name": "nobody"}, DryRun=dry) == (
        "InvalidParameterValue",
        "Value (nobody) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    )
    arn = f"arn:aws:iam::{ACCOUNT}:instance-profile/nobody"
    code, message = refusal(ec2, IamInstanceProfile={"Arn": arn}, DryRun=dry)
    assert code == "InvalidParameterValue"
    assert message.startswith(f"Value ({arn}) for parameter iamInstanceProfile.arn is invalid.")
    assert not live(ec2)


def test_a_profile_without_a_role_launches_nothing(ec2: Client) -> None:
    client("iam").create_instance_profile(InstanceProfileName="empty")
    code, message = refusal(ec2, IamInstanceProfile={"Name": "empty"})
    assert code == "InvalidParameterValue"
    assert message.endswith('instance-profile/empty" has no associated IAM Roles')
    assert not live(ec2)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"SnapshotId": "snap-00000000000000000"}}]},
         "InvalidSnapshot.NotFound"),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": MANY_TAGS}]}, "TagLimitExceeded"),
    ],
)  # fmt: skip
def test_late_errors_launch_nothing(ec2: Client, asked: dict[str, Any], code: str) -> None:
    assert refusal(ec2, **asked)[0] == code
    assert not live(ec2)
    in_use = {"Name": "status", "Values": ["in-use"]}
    assert not ec2.describe_network_interfaces(Filters=[in_use])["NetworkInterfaces"]


def test_every_instance_of_a_launch_has_the_profile(ec2: Client) -> None:
    launched = run(ec2, 3, **make_profile(f"profile-{uuid.uuid4().hex[:8]}"))
    found = ec2.describe_iam_instance_profile_associations()["IamInstanceProfileAssociations"]
    assert {one["InstanceId"] for one in found} >= set(ids_of(launched))


# --- another region


@pytest.mark.parametrize(
    ("service", "call"),
    [
        ("ec2", lambda c: c.describe_instances()),
        ("ssm", lambda c: c.get_parameter(Name="/x")),
        ("service-quotas", lambda c: c.list_service_quotas(ServiceCode="ec2")),
    ],
)
def test_a_call_to_another_region_names_the_sandboxs_region(phantom: RunningSandbox, service: Any, call: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(boto3.client(service, region_name="eu-west-1"))
    assert caught.value.response["Error"]["Code"] == "InvalidRegion"
    assert caught.value.response["Error"]["Message"] == (
        "the sandbox of this folder runs in us-east-1, not in eu-west-1"
    )


def test_global_services_work_in_every_region(phantom: RunningSandbox) -> None:
    assert boto3.client("sts", region_name="eu-west-1").get_caller_identity()["Account"] == ACCOUNT
    assert boto3.client("iam", region_name="eu-west-1").list_users()["Users"]
