"""The plans of `up` and `resize`, as tables of states."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foundation.errors import ClusterError
from provision.model import ClusterState, KeyPair, SecurityGroup, format_indices, parse_indices
from provision.plan import Plan, Step
from provision.render import render_plan
from provision.resources.instances import TerminateInstances, WaitForRunning, WaitForTerminated
from provision.resources.key_pair import DeleteKeyPair, ImportKeyPair
from provision.resources.launch import LaunchNodes
from provision.resources.placement_group import PlacementGroup
from provision.resources.run_instances import NodeSpec
from provision.resources.security_group import AuthorizeIngress, CreateSecurityGroup, DeleteSecurityGroup, RevokeIngress
from provision.up import plan_resize, plan_up
from provision_world import (
    CALLER_NETWORK,
    NAME,
    PUBLIC_KEY,
    make_config,
    make_group,
    make_key,
    make_node,
    make_option,
    make_preflight,
    make_state,
    make_wanted,
)  # fmt: skip

OTHER_KEY = "ssh-ed25519 AAAAother"
GROUP = make_group()
MAKE_KEY = ImportKeyPair(key_name="cluster-demo", is_made=True)
IMPORT_KEY = ImportKeyPair(key_name="cluster-demo")
DELETE_KEY = DeleteKeyPair(key_name="cluster-demo")
TWO_NODES = (make_node(0), make_node(1))


def state(**values: Any) -> ClusterState:
    return make_state(**{"nodes": TWO_NODES, **values})


def whole_plan(
    from_state: ClusterState, *, local_key: str | None = PUBLIC_KEY, preflight: Any = None, **settings: Any
) -> Plan:
    wanted = make_wanted(config=make_config(**settings), state=from_state, local_key=local_key)
    return plan_up(replace(wanted, preflight=(preflight or make_preflight()) if wanted.missing else None))


def plan(from_state: ClusterState, **values: Any) -> tuple[Step, ...]:
    return whole_plan(from_state, **values).steps


def find_launch(steps: tuple[Step, ...]) -> LaunchNodes:
    [launch] = [step for step in steps if isinstance(step, LaunchNodes)]
    return launch


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_from_nothing_to_everything() -> None:
    steps = plan(ClusterState(name=NAME), local_key=None)

    assert steps == (
        MAKE_KEY,
        CreateSecurityGroup(group_name="cluster-demo", vpc_id="vpc-1"),
        AuthorizeIngress(group_id=None, ssh_from=CALLER_NETWORK, members=True),
        LaunchNodes(
            nodes=NodeSpec(indices=(0, 1), key_name="cluster-demo", volume_size_gib=100, public_address=True),
            least=2,
            group_id=None,
            options=(make_option(),),
            total=2,
        ),
        WaitForRunning(nodes=2, public_address=True),
    )


def test_nothing_to_do() -> None:
    whole = whole_plan(state())
    assert not whole
    assert render_plan(whole) == "cluster demo: no resources to change\n"


@pytest.mark.parametrize(
    ("in_ec2", "here", "nodes", "expected"),
    [
        (None, None, (), (MAKE_KEY,)),
        (None, PUBLIC_KEY, (), (IMPORT_KEY,)),
        (make_key(), PUBLIC_KEY, (), ()),
        (make_key(), None, (), (DELETE_KEY, MAKE_KEY)),
        (make_key(), OTHER_KEY, (), (DELETE_KEY, IMPORT_KEY)),
        (make_key(None), PUBLIC_KEY, (), (DELETE_KEY, IMPORT_KEY)),
        (None, None, TWO_NODES, "is not on this machine"),
        (make_key(), OTHER_KEY, TWO_NODES, "is not the one on this machine"),
        (make_key(ours=False), PUBLIC_KEY, TWO_NODES, "did not make"),
    ],
)
def test_key_pair(
    in_ec2: KeyPair | None, here: str | None, nodes: tuple[Any, ...], expected: tuple[Step, ...] | str
) -> None:
    from_state = state(key_pair=in_ec2, nodes=nodes)
    if isinstance(expected, str):
        with pytest.raises(ClusterError, match=expected):
            plan(from_state, local_key=here)
    else:
        steps = plan(from_state, local_key=here)
        assert steps[: len(expected)] == expected
        assert not {"ImportKeyPair", "DeleteKeyPair"} & set(kinds(steps[len(expected) :]))


ALLOW_ALL = AuthorizeIngress(group_id=None, ssh_from=CALLER_NETWORK, members=True)
MAKE_GROUP = CreateSecurityGroup(group_name="cluster-demo", vpc_id="vpc-1")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), (MAKE_GROUP, ALLOW_ALL)),
        ((GROUP,), ()),
        (
            (make_group(ssh_from=(), ssh_open_to=(), open_to_members=False),),
            (AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=True),),
        ),
        (
            (make_group(ssh_from=("192.0.2.1/32",), ssh_open_to=("192.0.2.1/32",)),),
            (
                AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),
                RevokeIngress(group_id="sg-1", ssh_from=("192.0.2.1/32",)),
            ),
        ),
        # Somebody allowed the same network by hand: nothing to add or remove.
        ((make_group(ssh_open_to=(CALLER_NETWORK, "192.0.2.0/24")),), ()),
        # An interrupted `up` into another VPC created this group.
        ((make_group(group_id="sg-2", vpc_id="vpc-2"),), (DeleteSecurityGroup(group_id="sg-2"), MAKE_GROUP, ALLOW_ALL)),
        # A group in another VPC that is not the cluster's is ignored.
        ((make_group(ours=False),), "did not make"),
    ],
)
def test_security_group(groups: tuple[SecurityGroup, ...], expected: tuple[Step, ...] | str) -> None:
    from_state = state(security_groups=groups)
    if isinstance(expected, str):
        with pytest.raises(ClusterError, match=expected):
            plan(from_state)
    else:
        assert plan(from_state) == expected


@pytest.mark.parametrize(
    ("nodes", "wanted", "launched", "waits"),
    [
        ((), 3, (0, 1, 2), True),
        ((1,), 3, (0, 2), True),
        ((0, 1, 2), 3, None, False),
    ],
)
def test_launches_missing_nodes(
    nodes: tuple[int, ...], wanted: int, launched: tuple[int, ...] | None, *, waits: bool
) -> None:
    steps = plan(state(nodes=tuple(make_node(index) for index in nodes)), nodes=wanted)

    launches = [step for step in steps if isinstance(step, LaunchNodes)]
    assert [step.indices for step in launches] == ([launched] if launched else [])
    assert all(step.group_id == "sg-1" for step in launches)
    assert (WaitForRunning(nodes=wanted, public_address=True) in steps) is waits


@pytest.mark.parametrize("values", [{"state": "pending"}, {"public_ip": None}])
def test_waits_for_nodes_that_are_not_ready(values: dict[str, Any]) -> None:
    assert plan(state(nodes=(make_node(0), make_node(1, **values)))) == (WaitForRunning(nodes=2, public_address=True),)


@pytest.mark.parametrize(
    ("nodes", "wanted", "words"),
    [
        (TWO_NODES, 1, "not the 1 asked for"),
        ((make_node(0, state="stopped", state_reason="User initiated"),), 2, "is stopped: User initiated"),
        ((make_node(0, instance_type="m5.large"),), 2, 'is a m5.large; .* instance_type = "c5.xlarge"'),
    ],
)
def test_refuses_what_it_cannot_complete(nodes: tuple[Any, ...], wanted: int, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        plan(state(nodes=nodes), nodes=wanted)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("setting", "arn", "words"),
    [
        ("auto", "arn:aws:iam::1:instance-profile/cluster-us-east-1-demo", None),
        ("auto", None, 'has no instance profile; .*"auto" is cluster-us-east-1-demo'),
        ("y", "arn:aws:iam::1:instance-profile/x", "has another instance profile"),
    ],
)
def test_rejects_nodes_without_the_instance_profile(setting: str, arn: str | None, words: str | None) -> None:
    from_state = state(nodes=(make_node(0, profile_arn=arn), make_node(1, profile_arn=arn)))
    if words is None:
        assert plan(from_state, instance_profile=setting) == ()
        return
    with pytest.raises(ClusterError, match=words) as caught:
        plan(from_state, instance_profile=setting)
    assert "cluster resize 0" in str(caught.value.hint)


def test_the_plan_as_text() -> None:
    text = render_plan(whole_plan(ClusterState(name=NAME), local_key=None, nodes=4))

    steps = text.partition("\n\n")[2]
    assert steps == (
        "   1. make key pair cluster-demo (ed25519; the private key stays on this machine)\n"
        "   2. make security group cluster-demo in vpc-1\n"
        "   3. allow ssh from 203.0.113.7/32 and everything between members\n"
        "   4. launch 4 nodes (0-3)\n"
        "   5. wait until 4 nodes run\n"
    )
    for fact in ("123456789012", "c5.xlarge", "ami-0123456789abcdef0", "us-east-1a", "subnet-1", "100 GiB"):
        assert fact in text


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, ["CreatePlacementGroup"]),
        (PlacementGroup(group_name="cluster-demo", ours=True), []),
        (PlacementGroup(group_name="cluster-demo", ours=False), "did not make"),
    ],
)
def test_placement_group(group: PlacementGroup | None, expected: list[str] | str) -> None:
    from_state = state(nodes=(), found={"placement group": group})
    preflight = make_preflight(make_option(placement=True), make_option(instance_type="t3.large"))
    if isinstance(expected, str):
        with pytest.raises(ClusterError, match=expected):
            plan(from_state, preflight=preflight)
        return
    steps = plan(from_state, preflight=preflight)
    assert [kind for kind in kinds(steps) if kind == "CreatePlacementGroup"] == expected
    assert find_launch(steps).nodes.placement_group == "cluster-demo"


def test_no_placement_group_without_a_type_that_supports_it() -> None:
    steps = plan(state(nodes=()), preflight=make_preflight(make_option(placement=False)))
    assert "CreatePlacementGroup" not in kinds(steps)
    assert find_launch(steps).nodes.placement_group is None


@pytest.mark.parametrize(
    ("present", "nodes", "min_nodes", "least"),
    [
        (0, 4, "all", 4),
        (0, 4, 2, 2),
        (1, 4, 2, 1),
        (3, 4, "all", 1),
    ],
)
def test_how_many_nodes_are_required(present: int, nodes: int, min_nodes: Any, least: int) -> None:
    steps = plan(state(nodes=tuple(make_node(i) for i in range(present))), nodes=nodes, min_nodes=min_nodes)
    assert find_launch(steps).least == least


@pytest.mark.parametrize(
    ("setting", "name"), [("none", None), ("auto", "cluster-us-east-1-demo"), ("my-profile", "my-profile")]
)
def test_instance_profile(setting: str, name: str | None) -> None:
    assert find_launch(plan(state(nodes=()), instance_profile=setting)).nodes.instance_profile == name


@pytest.mark.parametrize(("egress", "expected"), [(False, ["AuthorizeEgress"]), (True, [])])
def test_efa_needs_an_egress_rule(*, egress: bool, expected: list[str]) -> None:
    steps = plan(state(nodes=(), security_groups=(make_group(egress_to_members=egress),)), efa=True)
    assert [kind for kind in kinds(steps) if kind == "AuthorizeEgress"] == expected


@pytest.mark.parametrize(
    ("present", "wanted", "ended", "launched"),
    [
        ((0, 1), 4, (), (2, 3)),
        ((0, 1, 2, 3), 2, (2, 3), ()),
        ((0, 2), 2, (2,), (1,)),
        ((0, 1), 0, (0, 1), ()),
    ],
)
def test_resize(present: tuple[int, ...], wanted: int, ended: tuple[int, ...], launched: tuple[int, ...]) -> None:
    from_state = state(nodes=tuple(make_node(index) for index in present))
    preflight = make_preflight() if launched else None
    steps = plan_resize(
        make_wanted(config=make_config(nodes=wanted), state=from_state, preflight=preflight, local_key=PUBLIC_KEY)
    ).steps

    terminated = [node.index for step in steps if isinstance(step, TerminateInstances) for node in step.nodes]
    assert tuple(terminated) == ended
    assert [step.indices for step in steps if isinstance(step, LaunchNodes)] == ([launched] if launched else [])
    assert [step.instance_ids for step in steps if isinstance(step, WaitForTerminated)] == (
        [tuple(f"i-{index}" for index in ended)] if ended else []
    )


@pytest.mark.parametrize("text", ["x", "3-1", "01", "0-1,1", "²"])
def test_ignores_invalid_index_tags(text: str) -> None:
    assert parse_indices(text) == ()


@given(st.sets(st.integers(0, 29)))
def test_indices_round_trip(missing: set[int]) -> None:
    present = tuple(make_node(index) for index in sorted(set(range(30)) - missing))
    launches = [step for step in plan(state(nodes=present), nodes=30) if isinstance(step, LaunchNodes)]
    assert [parse_indices(format_indices(step.indices)) for step in launches] == (
        [tuple(sorted(missing))] * bool(missing)
    )
