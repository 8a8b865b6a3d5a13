"""What the caller may do, found out without doing any of it."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from foundation.errors import AwsError
from provision.model import ClusterState, KeyPair, LaunchOption, Permissions, SecurityGroup
from provision.preflight.caller import describe_permissions
from provision.resources.instances import STAND_IN as STAND_IN_INSTANCE
from provision.resources.key_pair import STAND_IN_NAME
from provision.resources.placement_group import PlacementGroup
from provision.resources.resource import DryRun
from provision.resources.security_group import STAND_IN_GROUP
from provision.resources.table import KINDS
from provision_world import NAME, World, make_config, make_node, make_option, make_preflight, make_wanted

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
STAND_IN_CALLS = ("AuthorizeSecurityGroupIngress", "DeleteKeyPair", "DeleteSecurityGroup", "GetConsoleOutput")
"""Those that name what is not there, TerminateInstances aside."""
WHOLE = ClusterState(
    name=NAME,
    nodes=(make_node(0, instance_id="i-1"), make_node(1, instance_id="i-2")),
    key_pair=KeyPair(key_name="cluster-demo", public_key=None, ours=True),
    security_groups=(
        SecurityGroup(group_id="sg-1", vpc_id="vpc-1", ours=True, ssh_from=(), ssh_open_to=(), open_to_members=True),
    ),
    found={"placement group": PlacementGroup(group_name="cluster-demo", ours=True)},
)
EVERYTHING: dict[str, Any] = {"efa": True, "instance_profile": "nodes", "market": ["spot", "on-demand"]}
OPTIONS = (make_option(placement=True, efa=True), make_option(placement=True, efa=True, market="spot"))


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


def test_every_dry_run_is_dry(world: World) -> None:
    """Of everything that may be rehearsed: what leaves the program says so, and nothing is made or ended."""
    sent: list[tuple[str, str | None]] = []

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        sent.append((model.name, params["body"].get("DryRun")))

    world.up(make_config())
    state, before = world.describe(), world.resources()
    world.clients.ec2.meta.events.register("before-call.ec2", note)
    try:
        options = tuple(
            option
            for market in ("on-demand", "spot")
            for option in real_options(world, placement=True, efa=True, market=market)
        )
        empty = ClusterState(name=NAME)
        for known in (empty, state):
            permissions(world, known, options, **EVERYTHING)
    finally:
        world.clients.ec2.meta.events.unregister("before-call.ec2", note)

    assert {name for name, _ in sent} == {
        "AuthorizeSecurityGroupEgress",
        "AuthorizeSecurityGroupIngress",
        "CancelSpotInstanceRequests",
        "CreatePlacementGroup",
        "CreateSecurityGroup",
        "DeleteKeyPair",
        "DeletePlacementGroup",
        "DeleteSecurityGroup",
        "GetConsoleOutput",
        "ImportKeyPair",
        "RunInstances",
        "TerminateInstances",
    }
    assert {dry for _, dry in sent} == {"true"}
    assert world.describe() == state
    assert world.resources() == before


def test_a_service_that_carries_out_a_dry_run_is_an_error(world: World) -> None:
    def obey(params: dict[str, Any], **_: Any) -> None:
        del params["body"]["DryRun"]

    world.clients.ec2.meta.events.register("before-call.ec2.DeleteKeyPair", obey)
    try:
        with pytest.raises(AwsError, match=r"ec2:DeleteKeyPair was a dry run, but the service carried it out"):
            permissions(world)
    finally:
        world.clients.ec2.meta.events.unregister("before-call.ec2.DeleteKeyPair", obey)


# --- what is rehearsed


def test_what_is_not_there_has_stand_ins(world: World) -> None:
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


def test_what_is_there_is_named(world: World) -> None:
    found = {run.action: run for run in dry_runs(WHOLE, world)}
    assert not {"ec2:ImportKeyPair", "ec2:CreateSecurityGroup", "ec2:CreatePlacementGroup"} & found.keys()
    assert found["ec2:TerminateInstances"].request == {"InstanceIds": ["i-1"]}
    assert found["ec2:DeleteSecurityGroup"].request == {"GroupId": "sg-1"}
    assert {action for action, run in found.items() if run.stands_in} == {"ec2:CancelSpotInstanceRequests"}
    launch = found["ec2:RunInstances"].request
    assert launch["KeyName"] == "cluster-demo"
    assert launch["Placement"] == {"GroupName": "cluster-demo"}
    assert launch["NetworkInterfaces"][0]["Groups"] == ["sg-1"]


def test_only_what_will_be_called_is_asked_for(world: World) -> None:
    assert set(permissions(world).allowed) == ALWAYS
    wide = permissions(world, options=real_options(world, placement=True, market="spot"), market="spot", efa=True)
    assert set(wide.allowed) - ALWAYS == {
        "ec2:AuthorizeSecurityGroupEgress",
        "ec2:CancelSpotInstanceRequests",
        "ec2:CreatePlacementGroup",
        "ec2:DeletePlacementGroup",
    }


# --- what is missing


@pytest.mark.parametrize(
    "action", ["RunInstances", "ImportKeyPair", "CreateSecurityGroup", "TerminateInstances", "DeleteSecurityGroup"]
)
def test_a_refused_dry_run_is_a_missing_permission(world: World, action: str) -> None:
    refuse(world, action)
    found = permissions(world)
    assert found.missing == (f"ec2:{action}",)
    assert f"ec2:{action}" not in found.allowed


def test_all_that_is_missing_is_told_at_once(world: World) -> None:
    refuse(world, "RunInstances", "ImportKeyPair", "DeleteKeyPair")
    assert permissions(world).missing == ("ec2:DeleteKeyPair", "ec2:ImportKeyPair", "ec2:RunInstances")


def answer_with(world: World, operation: str, code: str, message: str) -> Any:
    """EC2 answers so: for refusals that only a policy of a certain kind would give."""

    def change(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Error"] = {"Code": code, "Message": message}

    world.clients.ec2.meta.events.register(f"after-call.ec2.{operation}", change)
    return lambda: world.clients.ec2.meta.events.unregister(f"after-call.ec2.{operation}", change)


def denial(action: str, resource: str = "*", why: str = "because no identity-based policy allows it") -> str:
    return f"User: ada is not authorized to perform: {action} on resource: {resource} {why}"


@pytest.mark.parametrize("action", ["ec2:CreateTags", "iam:PassRole"])
def test_a_permission_behind_a_call_is_the_one_that_is_named(world: World, action: str) -> None:
    undo = answer_with(world, "RunInstances", "UnauthorizedOperation", denial(action))
    try:
        found = permissions(world)
    finally:
        undo()
    assert found.missing == (action,)
    assert found.unknown == ("ec2:RunInstances",)


def test_a_missing_permission_to_pass_a_role_does_not_hide_the_launch(world: World) -> None:
    """The launch is rehearsed without the role as well."""

    def deny_role(parsed: dict[str, Any], context: Any, **_: Any) -> None:
        if "IamInstanceProfile" in context["asked"]:
            parsed["Error"] = {"Code": "UnauthorizedOperation", "Message": denial("iam:PassRole")}

    def keep(params: dict[str, Any], context: Any, **_: Any) -> None:
        context["asked"] = " ".join(params["body"])

    events = world.clients.ec2.meta.events
    events.register("before-call.ec2.RunInstances", keep)
    events.register("after-call.ec2.RunInstances", deny_role)
    try:
        found = permissions(world, instance_profile="nodes")
    finally:
        events.unregister("before-call.ec2.RunInstances", keep)
        events.unregister("after-call.ec2.RunInstances", deny_role)
    assert found.missing == ("iam:PassRole",)
    assert {"ec2:RunInstances", "ec2:CreateTags"} <= set(found.allowed)


def test_a_policy_that_goes_by_tags_refuses_all_stand_ins_and_none_is_called_missing(world: World) -> None:
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


def test_an_explicit_denial_counts_for_a_stand_in_as_well(world: World) -> None:
    refuse(world, *STAND_IN_CALLS)
    words = denial("ec2:TerminateInstances", why="with an explicit deny in an identity-based policy")
    undo = answer_with(world, "TerminateInstances", "UnauthorizedOperation", words)
    try:
        assert permissions(world).missing == ("ec2:TerminateInstances",)
    finally:
        undo()


def test_the_default_group_stands_in_for_the_clusters_own(world: World) -> None:
    words = denial("ec2:RunInstances", "arn:aws:ec2:us-east-1:123456789012:security-group/sg-0")
    undo = answer_with(world, "RunInstances", "UnauthorizedOperation", words)
    try:
        found = permissions(world)
    finally:
        undo()
    assert (found.missing, found.unknown) == ((), ("ec2:RunInstances",))


def test_other_answers_say_nothing_about_permissions(world: World) -> None:
    undo = answer_with(world, "TerminateInstances", "InvalidInstanceID.NotFound", "no such instance")
    try:
        found = permissions(world)
    finally:
        undo()
    assert (found.missing, found.unknown) == ((), ("ec2:TerminateInstances",))


def test_an_account_that_cannot_be_used(world: World) -> None:
    undo = answer_with(world, "RunInstances", "OptInRequired", "You are not subscribed to this service")
    try:
        with pytest.raises(ClientError, match="OptInRequired"):
            permissions(world)
    finally:
        undo()


@pytest.mark.parametrize(("profile", "without"), [("none", ("sts:GetFederationToken",)), ("auto", ())])
def test_whether_jobs_can_be_limited_is_tried_and_a_launch_does_without(
    world: World, profile: str, without: tuple[str, ...]
) -> None:
    refuse(world, "GetFederationToken")
    assert permissions(world, instance_profile="none").missing == ()
    assert permissions(world, instance_profile=profile).without == without
