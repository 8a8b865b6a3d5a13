"""The caller's permissions, tested by dry runs."""

from typing import Any

import pytest

from foundation.errors import AwsError
from provision.model import ClusterState, LaunchOption, Permissions
from provision.preflight.caller import describe_permissions
from provision.resources.instances import STAND_IN as STAND_IN_INSTANCE
from provision.resources.key_pair import STAND_IN_NAME
from provision.resources.placement_group import PlacementGroup
from provision.resources.resource import DryRun
from provision.resources.security_group import STAND_IN_GROUP
from provision.resources.table import KINDS
from provision_world import (
    NAME,
    World,
    listening,
    make_config,
    make_group,
    make_key,
    make_node,
    make_option,
    make_preflight,
    make_wanted,
)  # fmt: skip

REFUSED = "UnauthorizedOperation"
DEFAULT_GROUP = "arn:aws:ec2:us-east-1:123456789012:security-group/sg-0"
ALWAYS = {
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateSecurityGroup",
    "ec2:CreateTags",
    "ec2:DeleteKeyPair",
    "ec2:DeleteSecurityGroup",
    "ec2:GetConsoleOutput",
    "ec2:ImportKeyPair",
    "ec2:RunInstances",
    "ec2:TerminateInstances",
}
WIDE = {
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:CancelSpotInstanceRequests",
    "ec2:CreatePlacementGroup",
    "ec2:DeletePlacementGroup",
}
"""With EFA, spot and a placement group."""
STAND_IN_CALLS = ("AuthorizeSecurityGroupIngress", "DeleteKeyPair", "DeleteSecurityGroup", "GetConsoleOutput")
"""Besides TerminateInstances."""
WHOLE = ClusterState(
    name=NAME,
    nodes=(make_node(0, instance_id="i-1"), make_node(1, instance_id="i-2")),
    key_pair=make_key(),
    security_groups=(make_group(),),
    found={"placement group": PlacementGroup(group_name="cluster-demo", ours=True)},
)
EVERYTHING: dict[str, Any] = {"efa": True, "instance_profile": "nodes", "market": ["spot", "on-demand"]}
OPTIONS = (make_option(placement=True, efa=True), make_option(placement=True, efa=True, market="spot"))


def denial(action: str, resource: str = "*", why: str = "because no identity-based policy allows it") -> str:
    return f"User: ada is not authorized to perform: {action} on resource: {resource} {why}"


def real_options(world: World, **values: Any) -> tuple[LaunchOption, ...]:
    [subnet] = world.sandbox.backend.subnets["us-east-1a"].values()
    image = next(image for image in world.sandbox.backend.amis.values() if image.architecture == "x86_64")
    found = {"image_id": image.id, "subnet_id": subnet.id, "vpc_id": subnet.vpc_id}
    return (make_option(**found, **values),)


def permissions(
    world: World, state: ClusterState | None = None, options: tuple[LaunchOption, ...] | None = None, **settings: Any
) -> Permissions:
    known = state or ClusterState(name=NAME)
    config = make_config(nodes=len(known.nodes) + 2, **settings)
    preflight = make_preflight(*(options or real_options(world)))
    return describe_permissions(world.clients, make_wanted(config=config, state=known, preflight=preflight))


def dry_runs(state: ClusterState, world: World) -> list[DryRun]:
    config = make_config(nodes=len(state.nodes) + 2)
    wanted = make_wanted(config=config, state=state, preflight=make_preflight(*OPTIONS))
    return [run for kind in KINDS if kind.dry_runs is not None for run in kind.dry_runs(world.clients.ec2, wanted)]


def refuse(world: World, *actions: str) -> None:
    for action in actions:
        world.sandbox.book.arm(f"unauthorized action={action}")


# --- dry runs have no effect


def test_dry_runs_have_no_effect(world: World) -> None:
    """Every request of every dry run has DryRun, and no resource changes."""
    sent: list[tuple[str, str | None]] = []

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        sent.append((model.name, params["body"].get("DryRun")))

    world.up(make_config())
    state, before = world.describe(), world.resources()
    options = tuple(
        option
        for market in ("on-demand", "spot")
        for option in real_options(world, placement=True, efa=True, market=market)
    )
    with listening(world.clients.ec2, "before-call.ec2", note):
        for known in (ClusterState(name=NAME), state):
            permissions(world, known, options, **EVERYTHING)

    assert {f"ec2:{name}" for name, _ in sent} == ALWAYS - {"ec2:CreateTags"} | WIDE
    assert {dry for _, dry in sent} == {"true"}
    assert world.describe() == state
    assert world.resources() == before


def test_a_service_that_carries_out_a_dry_run_is_an_error(world: World) -> None:
    def obey(params: dict[str, Any], **_: Any) -> None:
        del params["body"]["DryRun"]

    with (
        listening(world.clients.ec2, "before-call.ec2.DeleteKeyPair", obey),
        pytest.raises(AwsError, match="ec2:DeleteKeyPair was a dry run, but the service carried it out"),
    ):
        permissions(world)


# --- what is rehearsed


def test_stand_ins_for_missing_resources(world: World) -> None:
    found = {run.action: run for run in dry_runs(ClusterState(name=NAME), world)}
    assert found["ec2:TerminateInstances"].request == {"InstanceIds": [STAND_IN_INSTANCE]}
    assert found["ec2:GetConsoleOutput"].request == {"InstanceId": STAND_IN_INSTANCE}
    assert found["ec2:DeleteSecurityGroup"].request == {"GroupId": STAND_IN_GROUP}
    assert found["ec2:DeleteKeyPair"].request == {"KeyName": STAND_IN_NAME}
    assert found["ec2:DeletePlacementGroup"].request == {"GroupName": STAND_IN_NAME}
    assert {action for action, run in found.items() if run.stands_in} == {
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:CancelSpotInstanceRequests",
        "ec2:DeleteKeyPair",
        "ec2:DeletePlacementGroup",
        "ec2:DeleteSecurityGroup",
        "ec2:GetConsoleOutput",
        "ec2:TerminateInstances",
    }
    launch = found["ec2:RunInstances"].request
    assert "KeyName" not in launch
    assert "Placement" not in launch
    assert "Groups" not in launch["NetworkInterfaces"][0]
    assert (launch["MinCount"], launch["MaxCount"]) == (2, 2)


def test_dry_runs_name_existing_resources(world: World) -> None:
    found = {run.action: run for run in dry_runs(WHOLE, world)}
    assert not {"ec2:ImportKeyPair", "ec2:CreateSecurityGroup", "ec2:CreatePlacementGroup"} & found.keys()
    assert found["ec2:TerminateInstances"].request == {"InstanceIds": ["i-1"]}
    assert found["ec2:DeleteSecurityGroup"].request == {"GroupId": "sg-1"}
    assert {action for action, run in found.items() if run.stands_in} == {"ec2:CancelSpotInstanceRequests"}
    launch = found["ec2:RunInstances"].request
    assert launch["KeyName"] == "cluster-demo"
    assert launch["Placement"] == {"GroupName": "cluster-demo"}
    assert launch["NetworkInterfaces"][0]["Groups"] == ["sg-1"]


def test_tests_only_the_calls_of_this_cluster(world: World) -> None:
    assert set(permissions(world).allowed) == ALWAYS
    wide = permissions(world, options=real_options(world, placement=True, market="spot"), market="spot", efa=True)
    assert set(wide.allowed) - ALWAYS == WIDE


# --- what is missing


@pytest.mark.parametrize(
    "actions",
    [
        ["DeleteKeyPair", "ImportKeyPair", "RunInstances"],
    ],
)  # fmt: skip
def test_a_refused_dry_run_is_a_missing_permission(world: World, actions: list[str]) -> None:
    refuse(world, *actions)
    found = permissions(world)
    assert found.missing == tuple(f"ec2:{action}" for action in actions)
    assert not set(found.missing) & set(found.allowed)


def answering(world: World, operation: str, code: str, message: str) -> Any:
    """Changes EC2's response, for refusals that only certain policies cause."""

    def change(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Error"] = {"Code": code, "Message": message}

    return listening(world.clients.ec2, f"after-call.ec2.{operation}", change)


@pytest.mark.parametrize(
    ("operation", "code", "message", "missing", "unknown"),
    [
        # AWS names another permission that the call needs.
        ("RunInstances", REFUSED, denial("ec2:CreateTags"), ("ec2:CreateTags",), ("ec2:RunInstances",)),
        # The VPC's default group stands in for the cluster's.
        ("RunInstances", REFUSED, denial("ec2:RunInstances", DEFAULT_GROUP), (), ("ec2:RunInstances",)),
        # Other errors reveal nothing about permissions.
        ("TerminateInstances", "InvalidInstanceID.NotFound", "no such instance", (), ("ec2:TerminateInstances",)),
    ],
)
def test_what_a_response_says_about_permissions(
    world: World, operation: str, code: str, message: str, *, missing: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    with answering(world, operation, code, message):
        found = permissions(world)
    assert (found.missing, found.unknown) == (missing, unknown)


def test_a_missing_permission_to_pass_a_role(world: World) -> None:
    """A second dry run, without the role, shows the permission to launch."""

    def deny_role(parsed: dict[str, Any], context: Any, **_: Any) -> None:
        if "IamInstanceProfile" in context["asked"]:
            parsed["Error"] = {"Code": "UnauthorizedOperation", "Message": denial("iam:PassRole")}

    def keep(params: dict[str, Any], context: Any, **_: Any) -> None:
        context["asked"] = " ".join(params["body"])

    ec2 = world.clients.ec2
    with (
        listening(ec2, "before-call.ec2.RunInstances", keep),
        listening(ec2, "after-call.ec2.RunInstances", deny_role),
    ):
        found = permissions(world, instance_profile="nodes")
    assert found.missing == ("iam:PassRole",)
    assert {"ec2:RunInstances", "ec2:CreateTags"} <= set(found.allowed)


def test_a_policy_by_tags_refuses_all_stand_ins(world: World) -> None:
    refuse(world, "TerminateInstances", *STAND_IN_CALLS)
    found = permissions(world)
    assert found.missing == ()
    assert set(found.unknown) == {
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:DeleteKeyPair",
        "ec2:DeleteSecurityGroup",
        "ec2:GetConsoleOutput",
        "ec2:TerminateInstances",
    }


@pytest.mark.parametrize(("profile", "without"), [("none", ("sts:GetFederationToken",)), ("auto", ())])
def test_limited_credentials_for_jobs_are_not_required(world: World, profile: str, without: tuple[str, ...]) -> None:
    refuse(world, "GetFederationToken")
    assert permissions(world, instance_profile="none").missing == ()
    assert permissions(world, instance_profile=profile).without == without
