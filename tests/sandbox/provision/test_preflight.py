"""The preflight against a sandbox that enforces IAM policies: its findings match what then happens."""

import json
from typing import Any

import boto3
import pytest
from mypy_boto3_ec2.type_defs import FilterTypeDef

from foundation.errors import AwsError
from iam_steps import allow, document, limited_operator
from provision.aws.clients import make_clients
from provision.aws.operator_policy import render_operator_policy
from provision.config import ProvisionConfig
from provision.model import ClusterState, Preflight
from provision.plan import Wanted
from provision.preflight.caller import describe_caller
from provision.preflight.places import describe_preflight
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox

NAME = "demo"
LOOKS = ["ec2:Describe*", "ssm:GetParameter", "servicequotas:*", "pricing:*"]
CREATIONS = ["ec2:RunInstances", "ec2:CreateTags", "ec2:ImportKeyPair", "ec2:CreateSecurityGroup", "ec2:Create*Group"]
STAND_INS = {
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CancelSpotInstanceRequests",
    "ec2:DeleteKeyPair",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup",
    "ec2:GetConsoleOutput",
    "ec2:TerminateInstances",
}
CONFIG = ProvisionConfig(ssh_from="203.0.113.7/32", market=("spot", "on-demand"))


def preflight(config: ProvisionConfig = CONFIG) -> Preflight:
    clients = make_clients(REGION)
    wanted = Wanted(name=NAME, config=config, state=ClusterState(name=NAME), caller=describe_caller(clients, config))
    return describe_preflight(clients, wanted)


def operator_statements(config: ProvisionConfig = CONFIG) -> list[dict[str, Any]]:
    policy = json.loads(render_operator_policy(config, name=NAME, data_url=None, results_url=None))
    statements: list[dict[str, Any]] = policy["Statement"]
    return statements


def test_an_administrator(phantom: RunningSandbox) -> None:
    found = preflight()
    assert len(found.options) == 10
    assert all(option.usd_per_hour for option in found.options)
    assert [quota.unknown for quota in found.quotas] == [None, None]
    assert found.volume_usd_per_gib_month
    assert set(found.permissions.allowed) > STAND_INS
    assert (found.permissions.missing, found.permissions.unknown) == ((), ())
    ec2 = boto3.client("ec2")
    states: FilterTypeDef = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    assert ec2.describe_instances(Filters=[states])["Reservations"] == []
    assert "cluster-demo" not in {pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]}
    assert "cluster-demo" not in {group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]}


@pytest.mark.usefixtures("phantom")
def test_the_operators_policy_suffices() -> None:
    """It goes by tags. A dry run cannot judge resources that do not exist, but no allowed action counts as missing."""
    with limited_operator(document(*operator_statements())):
        found = preflight()
    assert found.permissions.missing == ()
    assert set(found.permissions.unknown) <= STAND_INS
    assert {"ec2:RunInstances", "ec2:ImportKeyPair", "ec2:CreateSecurityGroup"} <= set(found.permissions.allowed)
    assert all(option.usd_per_hour for option in found.options)
    assert [quota.unknown for quota in found.quotas] == [None, None]


@pytest.mark.usefixtures("phantom")
def test_a_policy_without_conditions_that_lacks_something() -> None:
    """The other stand-ins were allowed, so this one would have been allowed, too."""
    others = ["ec2:Delete*", "ec2:Authorize*", "ec2:Cancel*", "ec2:GetConsoleOutput"]
    missing = pytest.raises(AwsError, match=r"nothing was made: .* need: ec2:TerminateInstances$")
    with limited_operator(document(allow([*LOOKS, *CREATIONS, *others]))), missing:
        preflight()


@pytest.mark.usefixtures("phantom")
def test_lists_all_missing_permissions() -> None:
    """CreateTags is checked in the calls that create the tagged resources."""
    policy = document(allow([*LOOKS, "ec2:RunInstances", "ec2:Create*Group", "ec2:Delete*"]))
    words = "ec2:AuthorizeSecurityGroupIngress, ec2:CancelSpotInstanceRequests, ec2:CreateTags, ec2:GetConsoleOutput"
    with limited_operator(policy), pytest.raises(AwsError, match=f"{words}, ec2:ImportKeyPair") as caught:
        preflight()
    assert "ec2:TerminateInstances" in caught.value.message
    assert "cluster iam-policy" in str(caught.value.hint)
