"""The nodes' role and instance profile are created, changed and deleted, with kills at every call."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from msgspec.structs import replace

from foundation.errors import AwsError, ClusterError
from foundation.progress import silent
from policies import REGION, role
from provision.aws.clients import aws_errors
from provision.aws.iam_policy import render_trust_policy
from provision.plan import Context, Request, Step
from provision.resources.instance_profile import (
    CreateInstanceProfile,
    DeleteInstanceProfile,
    InstanceProfile,
    find_instance_profile,
    plan_instance_profile,
)
from provision_world import NAME, Killed, World, aws_error, make_config, make_wanted

CALLED = "cluster-us-east-1-demo"


POLICY, OTHER_POLICY = role(), role(data="s3://data/mnist/")
OWNER = "arn:aws:iam::123456789012:user/ada,lovelace@example.com"
COMPLETE = InstanceProfile(name=CALLED, has_role=True, has_profile=True, in_profile=True, policy=POLICY)


def context(world: World) -> Context:
    return Context(cluster=NAME, owner=OWNER, tags={}, clients=world.clients, files=world.files, report=silent)


def find(world: World) -> InstanceProfile | None:
    return find_instance_profile(world.clients, Request(name=NAME, config=make_config()))


def plan(found: InstanceProfile | None, policy: str = POLICY) -> tuple[Step, ...]:
    found_ = {"role and instance profile": found}
    config = make_config(instance_profile="auto")
    return plan_instance_profile(make_wanted(config=config, found=found_, role_policy=policy))


def make(world: World, policy: str = POLICY) -> None:
    for step in plan(find(world), policy):
        with aws_errors("making the role"):
            step.apply(context(world))


def delete(world: World) -> bool:
    found = find(world)
    if found is None:
        return False
    with aws_errors("deleting the role"):
        return DeleteInstanceProfile(profile=found).apply(context(world))


def in_iam() -> Counter[str]:
    """The number of roles and profiles in IAM, read without the code under test."""
    backend = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    return +Counter({"roles": len([*backend.get_roles()]), "profiles": len([*backend.get_instance_profiles()])})


def assert_complete(world: World) -> None:
    found = find(world)
    assert found == replace(COMPLETE, policy=found.policy)
    assert json.loads(found.policy or "") == json.loads(POLICY)
    assert plan(found) == ()
    assert in_iam() == {"roles": 1, "profiles": 1}
    tags = {tag["Key"]: tag["Value"] for tag in world.clients.iam.get_role(RoleName=CALLED)["Role"]["Tags"]}
    assert tags == {
        "cluster:name": NAME,
        "cluster:role": "role",
        "cluster:owner": "arn:aws:iam::123456789012:user/ada_lovelace@example.com",  # IAM allows no comma in a tag
        "Name": "cluster-demo",
    }


@pytest.mark.parametrize(("act", "least"), [(make, 6), (delete, 7)])
def test_killed_at_every_call(world: World, tmp_path: Path, act: Any, least: int) -> None:
    def start(folder: str) -> None:
        world.reset(tmp_path / folder)
        if act is delete:
            make(world)

    start("count")
    world.calls.points = 0
    act(world)
    points = world.calls.points
    assert points >= least
    for point in range(points):
        start(str(point))
        with world.killed_at(point, before=False), pytest.raises(Killed):
            act(world)
        act(world)
        if act is make:
            assert_complete(world)
        else:
            assert not in_iam(), point


def test_replaces_a_changed_policy(world: World) -> None:
    make(world, OTHER_POLICY)
    make(world)
    assert_complete(world)


def test_rejects_and_keeps_what_is_not_ours(world: World) -> None:
    world.clients.iam.create_role(RoleName=CALLED, AssumeRolePolicyDocument=render_trust_policy(REGION))
    found = find(world)
    assert not found.ours
    with pytest.raises(ClusterError, match="did not make it for this cluster"):
        plan(found)
    with pytest.raises(ClusterError, match="did not make it for this cluster"):
        CreateInstanceProfile(name=CALLED, policy=POLICY).apply(context(world))
    [role] = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].get_roles()
    assert not role.policies


def test_waits_until_a_new_role_is_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """IAM is eventually consistent, unlike moto."""
    put = world.clients.iam.put_role_policy
    blind = {"looks": 3}

    def put_later(**request: Any) -> Any:
        if blind["looks"]:
            blind["looks"] -= 1
            raise aws_error("NoSuchEntity", "PutRolePolicy")
        return put(**request)

    monkeypatch.setattr(world.clients.iam, "put_role_policy", put_later)
    make(world)
    assert_complete(world)
    blind["looks"] = 10_000
    with pytest.raises(AwsError, match="NoSuchEntity"):
        make(world, OTHER_POLICY)
