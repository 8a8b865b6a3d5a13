from typing import Any

import pytest
from msgspec.structs import replace

from foundation.errors import ClusterError
from provision.model import ClusterState, KeyPair, SecurityGroup, format_indices, parse_indices
from provision.plan import Plan, Step
from provision.render import render_plan
from provision.resources.instances import TerminateInstances, WaitForRunning, WaitForTerminated
from provision.resources.key_pair import KEY_PAIR, ImportKeyPair
from provision.resources.launch import LaunchNodes
from provision.resources.placement_group import PlacementGroup
from provision.resources.security_group import AllowTraffic, CreateSecurityGroup, RevokeIngress
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
(DELETE_KEY,) = KEY_PAIR.plan_deletion("cluster-demo")
ALLOW_ALL = AllowTraffic(group_id=None, ssh_from=CALLER_NETWORK, members=True)
MAKE_GROUP = CreateSecurityGroup(group_name="cluster-demo", vpc_id="vpc-1")
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
    whole = whole_plan(ClusterState(name=NAME), local_key=None, nodes=4)
    assert whole.world is not None
    assert whole.steps == (
        MAKE_KEY,
        MAKE_GROUP,
        ALLOW_ALL,
        LaunchNodes(world=whole.world, preflight=make_preflight()),
        WaitForRunning(nodes=4, address="public"),
    )
    launch = find_launch(whole.steps)
    assert (launch.indices, launch.least, launch.group_id) == ((0, 1, 2, 3), 4, None)
    assert render_plan(whole).partition("\n\n")[2] == (
        "   1. make key pair cluster-demo (ed25519; the private key stays on this machine)\n"
        "   2. make security group cluster-demo in vpc-1\n"
        "   3. allow ssh from 203.0.113.7/32 and everything between members\n"
        "   4. launch 4 nodes (0-3)\n"
        "   5. wait until 4 nodes run\n"
    )


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
        with pytest.raises(ClusterError, match=expected) as caught:
            plan(from_state, local_key=here)
        assert "set another name in cluster.toml" in str(caught.value.hint)  # it may be somebody else's cluster
    else:
        steps = plan(from_state, local_key=here)
        assert steps[: len(expected)] == expected
        assert not {"ImportKeyPair", "DeleteResources"} & set(kinds(steps[len(expected) :]))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), (MAKE_GROUP, ALLOW_ALL)),
        ((GROUP,), ()),
        (
            (make_group(ssh_from=(), ssh_open_to=(), open_to_members=False),),
            (AllowTraffic(group_id="sg-1", ssh_from=CALLER_NETWORK, members=True),),
        ),
        (
            (make_group(ssh_from=("192.0.2.1/32",), ssh_open_to=("192.0.2.1/32",)),),
            (
                AllowTraffic(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),
                RevokeIngress(group_id="sg-1", ssh_from=("192.0.2.1/32",)),
            ),
        ),
        # Somebody allowed the same network by hand: nothing to add or remove.
        ((make_group(ssh_open_to=(CALLER_NETWORK, "192.0.2.0/24")),), ()),
        # A group in another VPC is ignored: `down` deletes it if it is the cluster's.
        ((make_group(group_id="sg-2", vpc_id="vpc-2"),), (MAKE_GROUP, ALLOW_ALL)),
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
    ("present", "wanted", "min_nodes", "launched", "least"),
    [
        ((), 3, "all", (0, 1, 2), 3),
        ((), 4, 2, (0, 1, 2, 3), 2),
        ((1,), 4, 2, (0, 2, 3), 1),
    ],
)
def test_launches_missing_nodes(
    present: tuple[int, ...], wanted: int, min_nodes: Any, launched: tuple[int, ...], least: int
) -> None:
    steps = plan(state(nodes=tuple(map(make_node, present))), nodes=wanted, min_nodes=min_nodes)
    launch = find_launch(steps)
    assert (launch.indices, launch.least, launch.group_id) == (launched, least, "sg-1")
    assert isinstance(steps[-1], WaitForRunning)


def test_waits_for_a_node_that_is_not_ready() -> None:
    steps = plan(state(nodes=(make_node(0), make_node(1, public_ip=None))))
    assert steps == (WaitForRunning(nodes=2, address="public"),)


@pytest.mark.parametrize(
    ("node", "settings", "words", "hint"),
    [
        ({"index": 2}, {}, "not the 2 asked for", "cluster resize 2"),
        ({"state": "stopped", "state_reason": "User initiated"}, {}, "is stopped: User initiated", "cluster start"),
        ({"instance_type": "m5.large"}, {}, 'is a m5.large; .* instance_type = "c5.xlarge"', "cluster down"),
        ({}, {"instance_profile": "auto"}, 'has no instance profile; .*"auto" is cluster-us-east-1-demo', "resize 0"),
        ({"profile_arn": "arn:aws:iam::1:instance-profile/x"}, {"instance_profile": "y"}, "has another", "resize 0"),
    ],
)
def test_refuses_what_it_cannot_complete(node: dict[str, Any], settings: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        plan(state(nodes=(make_node(**{"index": 0, **node}),)), **settings)
    assert hint in str(caught.value.hint)


def test_a_placement_group_of_others() -> None:
    of_others = {"placement group": PlacementGroup(group_name="cluster-demo", ours=False)}
    preflight = make_preflight(make_option(placement=True), make_option(instance_type="t3.large"))
    with pytest.raises(ClusterError, match="did not make"):
        plan(state(nodes=(), found=of_others), preflight=preflight)


def test_what_a_launch_needs() -> None:
    """No placement group without a type that supports it; EFA needs an egress rule."""
    steps = plan(state(nodes=()), preflight=make_preflight(make_option(placement=False)), instance_profile="mine")
    assert kinds(steps) == ["LaunchNodes", "WaitForRunning"]
    spec = find_launch(steps).nodes
    assert (spec.placement_group, spec.instance_profile) == (None, "mine")
    assert find_launch(plan(state(nodes=()), instance_profile="none")).nodes.instance_profile is None
    for egress, expected in ((False, (AllowTraffic(group_id="sg-1", egress=True),)), (True, ())):
        steps = plan(state(nodes=(), security_groups=(make_group(egress_to_members=egress),)), efa=True)
        assert steps[:-2] == expected


@pytest.mark.parametrize(
    ("present", "wanted", "ended", "launched"),
    [
        ((0, 1), 4, (), (2, 3)),
        ((0, 2), 2, (2,), (1,)),
        ((0, 1), 0, (0, 1), ()),
    ],
)
def test_resize(present: tuple[int, ...], wanted: int, ended: tuple[int, ...], launched: tuple[int, ...]) -> None:
    from_state = state(nodes=tuple(make_node(index) for index in present if index not in ended))
    preflight = make_preflight() if launched else None
    steps = plan_resize(
        make_wanted(config=make_config(nodes=wanted), state=from_state, preflight=preflight, local_key=PUBLIC_KEY),
        tuple(map(make_node, ended)),
    ).steps
    terminated = [node.index for step in steps if isinstance(step, TerminateInstances) for node in step.nodes]
    assert tuple(terminated) == ended
    assert [step.indices for step in steps if isinstance(step, LaunchNodes)] == ([launched] if launched else [])
    assert [step.instance_ids for step in steps if isinstance(step, WaitForTerminated)] == (
        [tuple(f"i-{index}" for index in ended)] if ended else []
    )


def test_the_tag_of_indices() -> None:
    indices = (0, 2, 3, 4, 10)
    assert format_indices(indices) == "0,2-4,10"
    assert parse_indices("0,2-4,10") == indices
    for text in ("x", "3-1", "01", "0-1,1", "²"):
        assert parse_indices(text) == ()
