"""What `up` and `down` decide, as tables of states."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import ClusterError, ConfigError, NotFoundError
from provision.model import (
    MAX_TAG_LENGTH,
    ClusterState,
    KeyPair,
    SecurityGroup,
    format_indices,
    parse_indices,
)
from provision.plan import Plan, plan_down, plan_up
from provision.receipt import Receipt, deleted_by, render_receipt
from provision.render import render_plan
from provision.steps import (
    AuthorizeIngress,
    CreateKeyPair,
    CreateSecurityGroup,
    DeleteKeyPair,
    DeleteSecurityGroup,
    ForgetFiles,
    ImportKeyPair,
    RevokeIngress,
    RunInstances,
    Step,
    TerminateInstances,
    WaitForRunning,
    WaitForTerminated,
)
from provision_world import CALLER, NAME, make_config, make_node, make_target

OUR_KEY = "ssh-ed25519 AAAAours"
OTHER_KEY = "ssh-ed25519 AAAAother"
GROUP = SecurityGroup(
    group_id="sg-1", vpc_id="vpc-1", ours=True, ssh_from=(CALLER,), ssh_open_to=(CALLER,), open_to_members=True
)
MAKE_KEY = CreateKeyPair(key_name="cluster-demo")
IMPORT_KEY = ImportKeyPair(key_name="cluster-demo")
DELETE_KEY = DeleteKeyPair(key_name="cluster-demo")
TWO_NODES = (make_node(0), make_node(1))


def key(public_key: str | None = OUR_KEY, *, ours: bool = True) -> KeyPair:
    return KeyPair(key_name="cluster-demo", key_pair_id="key-1", public_key=public_key, ours=ours)


def group(**values: Any) -> SecurityGroup:
    fields = {name: getattr(GROUP, name) for name in SecurityGroup.__slots__}
    return SecurityGroup(**{**fields, **values})


def state(**values: Any) -> ClusterState:
    whole: dict[str, Any] = {"nodes": TWO_NODES, "key_pair": key(), "security_groups": (GROUP,)}
    return ClusterState(name=NAME, **{**whole, **values})


def plan(
    from_state: ClusterState, *, local_key: str | None = OUR_KEY, target: Any = None, **settings: Any
) -> tuple[Step, ...]:
    return plan_up(
        name=NAME,
        config=make_config(**settings),
        state=from_state,
        target=target or make_target(),
        local_key=local_key,
    ).steps


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_from_nothing_to_everything() -> None:
    steps = plan(ClusterState(name=NAME), local_key=None)

    assert steps == (
        MAKE_KEY,
        CreateSecurityGroup(group_name="cluster-demo", vpc_id="vpc-1"),
        AuthorizeIngress(group_id=None, ssh_from=CALLER, members=True),
        RunInstances(indices=(0, 1), group_id=None, key_name="cluster-demo", volume_size_gib=100, target=make_target()),
        WaitForRunning(nodes=2, public_address=True),
    )


def test_nothing_to_do() -> None:
    whole = plan_up(name=NAME, config=make_config(), state=state(), target=make_target(), local_key=OUR_KEY)
    assert not whole
    assert render_plan(whole) == "cluster demo: nothing to do\n"


@pytest.mark.parametrize(
    ("in_ec2", "here", "nodes", "expected"),
    [
        (None, None, (), (MAKE_KEY,)),
        (None, OUR_KEY, (), (IMPORT_KEY,)),
        (None, OUR_KEY, TWO_NODES, (IMPORT_KEY,)),
        (key(), OUR_KEY, (), ()),
        (key(), OUR_KEY, TWO_NODES, ()),
        (key(), None, (), (DELETE_KEY, MAKE_KEY)),
        (key(), OTHER_KEY, (), (DELETE_KEY, IMPORT_KEY)),
        (key(None), OUR_KEY, (), (DELETE_KEY, IMPORT_KEY)),
        (None, None, TWO_NODES, "is not on this machine"),
        (key(), None, TWO_NODES, "is not on this machine"),
        (key(), OTHER_KEY, TWO_NODES, "on this machine is another one"),
        (key(ours=False), None, (), "did not make"),
        (key(ours=False), OUR_KEY, (), "did not make"),
        (key(ours=False), OUR_KEY, TWO_NODES, "did not make"),
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
        assert not {"CreateKeyPair", "ImportKeyPair", "DeleteKeyPair"} & set(kinds(steps[len(expected) :]))


ALLOW_ALL = AuthorizeIngress(group_id=None, ssh_from=CALLER, members=True)
MAKE_GROUP = CreateSecurityGroup(group_name="cluster-demo", vpc_id="vpc-1")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), (MAKE_GROUP, ALLOW_ALL)),
        ((GROUP,), ()),
        (
            (group(ssh_from=(), ssh_open_to=(), open_to_members=False),),
            (AuthorizeIngress(group_id="sg-1", ssh_from=CALLER, members=True),),
        ),
        ((group(open_to_members=False),), (AuthorizeIngress(group_id="sg-1", ssh_from=None, members=True),)),
        (
            (group(ssh_from=("192.0.2.1/32",), ssh_open_to=("192.0.2.1/32",)),),
            (
                AuthorizeIngress(group_id="sg-1", ssh_from=CALLER, members=False),
                RevokeIngress(group_id="sg-1", ssh_from=("192.0.2.1/32",)),
            ),
        ),
        # Somebody opened it by hand, for the very network: no rule of ours to add, none to take back.
        ((group(ssh_from=(), ssh_open_to=(CALLER,)),), ()),
        ((group(ssh_open_to=(CALLER, "192.0.2.0/24")),), ()),
        # An interrupted `up` into another VPC made it.
        ((group(group_id="sg-2", vpc_id="vpc-2"),), (DeleteSecurityGroup(group_id="sg-2"), MAKE_GROUP, ALLOW_ALL)),
        # Somebody else's in another VPC is none of our business.
        ((group(group_id="sg-2", vpc_id="vpc-2", ours=False), GROUP), ()),
        ((group(ours=False),), "did not make"),
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
        ((), 1, (0,), True),
        ((), 3, (0, 1, 2), True),
        ((0,), 3, (1, 2), True),
        ((1,), 3, (0, 2), True),
        ((0, 1, 2), 3, None, False),
    ],
)
def test_launches_what_is_missing(
    nodes: tuple[int, ...], wanted: int, launched: tuple[int, ...] | None, *, waits: bool
) -> None:
    steps = plan(state(nodes=tuple(make_node(index) for index in nodes)), nodes=wanted)

    launches = [step for step in steps if isinstance(step, RunInstances)]
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
        ((make_node(0), make_node(7)), 2, r"has 2 nodes \(0,7\), not the 2 asked for"),
        ((make_node(0, state="stopped", state_reason="User initiated"),), 2, "is stopped: User initiated"),
        ((make_node(0, state="stopping"),), 2, "is stopping"),
        ((make_node(0, instance_type="m5.large"),), 2, 'is a m5.large; .* instance_type = "c5.xlarge"'),
    ],
)
def test_refuses_what_it_cannot_complete(nodes: tuple[Any, ...], wanted: int, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        plan(state(nodes=nodes), nodes=wanted)
    assert caught.value.hint


def test_no_nodes_is_a_mistake_in_the_file() -> None:
    with pytest.raises(ConfigError, match="nodes = 0"):
        plan(ClusterState(name=NAME), nodes=0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"nodes": (), "key_pair": None, "security_groups": ()}, []),
        (
            {},
            ["TerminateInstances", "WaitForTerminated", "DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"],
        ),
        ({"nodes": ()}, ["DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"]),
        (
            {"nodes": (), "ending": ("i-9",)},
            ["WaitForTerminated", "DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"],
        ),
        ({"nodes": (), "security_groups": ()}, ["DeleteKeyPair", "ForgetFiles"]),
        ({"nodes": (), "key_pair": None}, ["DeleteSecurityGroup", "ForgetFiles"]),
        ({"nodes": (), "key_pair": key(ours=False), "security_groups": (group(ours=False),)}, []),
    ],
)
def test_down(values: dict[str, Any], expected: list[str]) -> None:
    assert kinds(plan_down(state(**values)).steps) == expected


def test_down_with_nothing_but_files() -> None:
    assert plan_down(ClusterState(name=NAME), local_files=True).steps == (ForgetFiles(),)


def test_down_waits_for_the_live_and_the_ending() -> None:
    steps = plan_down(state(ending=("i-9",))).steps

    assert steps[:2] == (
        TerminateInstances(nodes=TWO_NODES),
        WaitForTerminated(instance_ids=("i-0", "i-1", "i-9")),
    )


def test_the_plan_can_be_read() -> None:
    text = render_plan(
        plan_up(
            name=NAME,
            config=make_config(nodes=4),
            state=ClusterState(name=NAME),
            target=make_target(gpus="1x NVIDIA T4"),
            local_key=None,
        )
    )

    assert text == (
        "cluster demo:\n"
        "   1. make key pair cluster-demo (ed25519; the private key stays on this machine)\n"
        "   2. make security group cluster-demo in vpc-1\n"
        "   3. allow ssh from 203.0.113.7/32 and everything between members\n"
        "   4. launch 4 nodes (0-3)\n"
        "      type     c5.xlarge (4 vCPUs, 1x NVIDIA T4, x86_64)\n"
        "      image    ami-0123456789abcdef0 (ubuntu-22.04)\n"
        "      place    us-east-1a, subnet-1\n"
        "      address  public and private\n"
        "      disk     100 GiB gp3, encrypted, deleted with its instance\n"
        "      account  123456789012 as arn:aws:iam::123456789012:user/ada\n"
        "      price    unknown\n"
        "   5. wait until 4 nodes run\n"
    )


def test_the_plan_of_down_names_the_nodes() -> None:
    text = render_plan(plan_down(state(ending=("i-9",))))

    assert "1. terminate 2 nodes (0-1)\n      node-0  i-0  running\n      node-1  i-1  running\n" in text
    assert "2. wait until 3 instances are gone\n   3. delete security group sg-1\n" in text


@pytest.mark.parametrize(
    ("indices", "text"),
    [((), ""), ((0,), "0"), ((0, 1), "0-1"), ((0, 2), "0,2"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8")],
)
def test_indices_as_text(indices: tuple[int, ...], text: str) -> None:
    assert format_indices(indices) == text
    assert parse_indices(text) == indices


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1,1", "0, 1", "01", "0-1,1", "0-99999999999", "²"])
def test_what_somebody_wrote_into_the_tag_is_not_believed(text: str) -> None:
    assert parse_indices(text) == ()


@given(st.sets(st.integers(0, 999)))
def test_indices_survive_and_scattered_ones_are_split_to_fit_a_tag(missing: set[int]) -> None:
    present = tuple(make_node(index) for index in sorted(set(range(1000)) - missing))
    launches = [step for step in plan(state(nodes=present), nodes=1000) if isinstance(step, RunInstances)]

    texts = [format_indices(step.indices) for step in launches]
    assert all(len(text) <= MAX_TAG_LENGTH for text in texts)
    assert sorted(index for text in texts for index in parse_indices(text)) == sorted(missing)


def test_a_node_by_its_name_or_its_id() -> None:
    assert state().node("node-1") == state().node("i-1") == make_node(1)
    with pytest.raises(NotFoundError, match="it has: node-0, node-1"):
        state().node("node-7")


def test_what_exists() -> None:
    assert not ClusterState(name=NAME).exists
    assert not ClusterState(name=NAME, key_pair=key(ours=False), security_groups=(group(ours=False),)).exists
    assert ClusterState(name=NAME, key_pair=key()).exists
    assert ClusterState(name=NAME, ending=("i-1",)).exists
    assert state().head == make_node(0)


def test_the_receipt_says_what_is_left() -> None:
    whole: Plan = plan_down(state(nodes=tuple(make_node(index) for index in range(10))))
    receipt = Receipt(
        cluster=NAME, deleted=deleted_by(whole), leftovers=deleted_by(whole)[:1], node_hours=2.5, cost_usd=1.25
    )

    assert render_receipt(receipt) == (
        "cluster demo: NOT all is gone\n"
        "  deleted  10 x instance: i-0, i-1, i-2, i-3, i-4, i-5, i-6, i-7 and 2 more\n"
        "  deleted  1 x security group: sg-1\n"
        "  deleted  1 x key pair: cluster-demo\n"
        "  deleted  1 x local files: private key, known hosts\n"
        "  left     1 x instance: i-0\n"
        "  ran      2.50 node hours, cost $1.25\n"
    )
