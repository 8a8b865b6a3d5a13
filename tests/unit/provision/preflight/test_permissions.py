from typing import Any

import pytest

from provision import plan as plans
from provision.model import ClusterState, LaunchOption, Permissions
from provision.preflight.caller import describe_permissions
from provision_world import (
    NAME,
    World,
    listening,
    make_config,
    make_option,
    make_preflight,
    make_wanted,
)  # fmt: skip

REFUSED = "UnauthorizedOperation"
DEFAULT_GROUP = "arn:aws:ec2:us-east-1:123456789012:security-group/sg-0"
BOTH = ("ec2:RunInstances", "ec2:TerminateInstances")


def denial(action: str, resource: str = "*", why: str = "because no identity-based policy allows it") -> str:
    return f"User: ada is not authorized to perform: {action} on resource: {resource} {why}"


def real_options(world: World, **values: Any) -> tuple[LaunchOption, ...]:
    [subnet] = world.sandbox.backend.subnets["us-east-1a"].values()
    image = next(image for image in world.sandbox.backend.amis.values() if image.architecture == "x86_64")
    found = {"image_id": image.id, "subnet_id": subnet.id, "vpc_id": subnet.vpc_id}
    return (make_option(**found, **values),)


def wanted(world: World, state: ClusterState | None = None, **settings: Any) -> plans.World:
    known = state or ClusterState(name=NAME)
    config = make_config(nodes=len(known.nodes) + 2, **settings)
    preflight = make_preflight(*real_options(world, placement=True))
    return make_wanted(config=config, state=known, preflight=preflight)


def permissions(world: World, state: ClusterState | None = None, **settings: Any) -> Permissions:
    return describe_permissions(world.clients, wanted(world, state, **settings))


def test_dry_runs_show_permissions_and_have_no_effect(world: World) -> None:
    world.up(make_config())
    state, before = world.describe(), world.resources()
    world.calls.made.clear()
    assert permissions(world).allowed == permissions(world, state).allowed == BOTH
    assert not world.calls.mutating()  # every call was a dry run
    for action in ("RunInstances", "TerminateInstances"):
        world.sandbox.book.arm(f"unauthorized action={action}")
    assert (permissions(world, state).missing, permissions(world, state).allowed) == (BOTH, ())
    assert world.resources() == before


@pytest.mark.parametrize(
    ("operation", "code", "message", "missing", "unknown"),
    [
        # AWS names another permission that the call needs.
        ("RunInstances", REFUSED, denial("iam:PassRole"), ("iam:PassRole",), ()),
        # The VPC's default group stands in for the cluster's.
        ("RunInstances", REFUSED, denial("ec2:RunInstances", DEFAULT_GROUP), (), ("ec2:RunInstances",)),
        # A policy by tags refuses an instance that does not exist; no policy allows what is denied.
        ("TerminateInstances", REFUSED, denial("ec2:TerminateInstances"), (), ("ec2:TerminateInstances",)),
        ("TerminateInstances", REFUSED, denial("ec2:X", why="with an explicit deny"), ("ec2:X",), ()),
        # Other errors reveal nothing about permissions.
        ("TerminateInstances", "InvalidInstanceID.NotFound", "no such instance", (), ("ec2:TerminateInstances",)),
    ],
)
def test_what_a_response_says_about_permissions(
    world: World, operation: str, code: str, message: str, *, missing: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    def change(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Error"] = {"Code": code, "Message": message}

    with listening(world.clients.ec2, f"after-call.ec2.{operation}", change):
        found = permissions(world)
    assert (found.missing, found.unknown) == (missing, unknown)
