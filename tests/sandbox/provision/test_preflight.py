"""The preflight against a sandbox: its findings match what then happens."""

import boto3
import pytest
from mypy_boto3_ec2.type_defs import FilterTypeDef

from foundation.errors import AwsError
from provision.aws.clients import make_clients
from provision.config import ProvisionConfig
from provision.model import ClusterState, Preflight
from provision.plan import Wanted
from provision.preflight.caller import describe_caller
from provision.preflight.places import describe_preflight
from sandbox import control
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox

NAME = "demo"
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


@pytest.mark.parametrize("missing", [("TerminateInstances",), ("GetConsoleOutput", "ImportKeyPair")])
def test_all_missing_permissions_are_listed(phantom: RunningSandbox, missing: tuple[str, ...]) -> None:
    for action in missing:
        control.cause_fault(phantom.project_dir, f"unauthorized service=ec2 action={action}")
    words = ", ".join(f"ec2:{action}" for action in missing)
    try:
        with pytest.raises(AwsError, match=rf"nothing was made: .* need: {words}$") as caught:
            preflight()
    finally:
        control.disarm_faults(phantom.project_dir, "all")
    assert "cluster iam-policy" in str(caught.value.hint)
