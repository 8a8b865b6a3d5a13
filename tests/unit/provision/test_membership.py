"""Which instances are nodes: the tag is only a claim, and three conditions decide."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.commands.adopt import choose, render_candidates
from cluster.views.terminal import escape
from foundation.errors import NotFoundError
from provision.membership import (
    KnownInstances,
    find_key_problem,
    find_known,
    find_problems,
    no_nodes,
    sign_token,
)
from provision.model import ClusterState, Instance, KeyPair, UntrustedInstance
from provision_world import NAME, PUBLIC_KEY, World, make_config, make_instance, make_key, make_node

OURS = make_key()
SIGNED_AT = 1_800_000_000.0
LAUNCH_KEY = b"derived"
SIGNED = sign_token(LAUNCH_KEY, now=SIGNED_AT)


def make_claim(**values: Any) -> Instance:
    """An instance with the cluster's tag, launched at SIGNED_AT + launched_s."""
    launched_at = datetime.fromtimestamp(SIGNED_AT + values.pop("launched_s", 0), UTC)
    given = {"instance_id": "i-1", "reservation_id": "r-1", "key_name": "cluster-demo", "group_ids": ("sg-1",)}
    return make_instance(Instance, **{**given, "client_token": "a-token", "launched_at": launched_at, **values})


def make_untrusted(**values: Any) -> UntrustedInstance:
    given = {"instance_id": "i-9", "key_name": "cluster-demo", "group_ids": ("sg-1",), "image_id": "ami-1"}
    return make_instance(UntrustedInstance, **{**given, "is_known": False, **values})


@pytest.mark.parametrize(
    ("claim", "key_pair", "groups", "problem"),
    [
        ({}, OURS, ["sg-1"], None),
        ({"group_ids": ("sg-2",)}, OURS, ["sg-1", "sg-2"], None),  # one group in each VPC
        ({}, None, ["sg-1"], None),  # the key pair was deleted in EC2; `up` imports it again
        ({"key_name": "mine"}, OURS, ["sg-1"], "its key pair is 'mine', not 'cluster-demo'"),
        ({}, make_key(ours=False), ["sg-1"], "does not carry the cluster's tag"),
        ({"group_ids": ("sg-7",)}, OURS, ["sg-1"], "its security group is sg-7, not sg-1"),
        ({}, OURS, [], "its security group is sg-1, not cluster-demo, which does not exist"),
    ],
)
def test_which_instances_can_be_nodes(
    claim: dict[str, Any], key_pair: KeyPair | None, groups: list[str], problem: str | None
) -> None:
    key_problem = find_key_problem(key_pair, PUBLIC_KEY)
    problems = find_problems(make_claim(**claim), name=NAME, key_problem=key_problem, group_ids=frozenset(groups))
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


@pytest.mark.parametrize(
    ("claims", "known", "expected"),
    [
        ([{}], {"instance_ids": {"i-1"}}, ["i-1"]),
        ([{}], {"tokens": {"a-token"}}, ["i-1"]),
        ([{}, {"instance_id": "i-2"}], {"tokens": {"a-token"}}, ["i-1", "i-2"]),
        # Anyone can read the cluster's token and use it again in another zone: either launch may be the cluster's.
        ([{}, {"instance_id": "i-2", "reservation_id": "r-2"}], {"tokens": {"a-token"}}, []),
        (
            [{}, {"instance_id": "i-2", "reservation_id": "r-2"}],
            {"tokens": {"a-token"}, "instance_ids": {"i-1"}},
            ["i-1"],
        ),
    ],
)
def test_which_instances_this_machine_knows(
    claims: list[dict[str, Any]], known: dict[str, Collection[str]], expected: list[str]
) -> None:
    sets: dict[str, Any] = {key: frozenset(value) for key, value in known.items()}
    asked = KnownInstances(**sets)
    assert sorted(find_known([make_claim(**claim) for claim in claims], asked)) == expected


@pytest.mark.parametrize(
    ("claims", "key", "is_known"),
    [
        ([{}], LAUNCH_KEY, True),
        ([{"launched_s": 3600}], LAUNCH_KEY, False),  # somebody has used it again since the node ended
        ([{}, {"instance_id": "i-2", "reservation_id": "r-2"}], LAUNCH_KEY, False),
        ([{}], b"another cluster's", False),
        ([{}], None, False),
        ([{"client_token": sign_token(b"", now=SIGNED_AT)}], b"", False),
        *[([{"client_token": token}], LAUNCH_KEY, False) for token in (SIGNED[:-1], "f" + SIGNED, "..", "ä")],
    ],
)
def test_a_signed_token_proves_a_launch_by_the_head(
    claims: list[dict[str, Any]], key: bytes | None, *, is_known: bool
) -> None:
    made = [make_claim(**{"client_token": SIGNED, **claim}) for claim in claims]
    assert bool(find_known(made, KnownInstances(launch_key=key))) == is_known
    assert len(SIGNED) <= 64  # EC2 takes no longer ones


def test_the_error_without_nodes_names_those_to_adopt() -> None:
    error = no_nodes(ClusterState(name=NAME, untrusted=(make_untrusted(),)))
    assert isinstance(error, NotFoundError)
    assert error.message == (
        "cluster demo has no nodes that this machine launched; 1 instance with its tag is not trusted: i-9"
    )
    assert error.hint == "cluster adopt"
    assert no_nodes(ClusterState(name=NAME), what="to stop").message == "cluster demo has no nodes to stop"


def test_an_instance_with_our_tags_does_not_take_an_index(world: World) -> None:
    """Another user launches it, with the cluster's key pair and group."""
    nodes = {node.instance_id for node in world.up(make_config()).nodes}
    shown: Any = world.clients.ec2.describe_instances()["Reservations"][0]["Instances"][0]
    request: Any = {key: shown[key] for key in ("ImageId", "InstanceType", "KeyName", "SubnetId")}
    request["SecurityGroupIds"] = [group["GroupId"] for group in shown["SecurityGroups"]]
    alike = world.launch(**request, TagSpecifications=[{"ResourceType": "instance", "Tags": shown["Tags"]}])
    world.time.sleep(60)
    state = world.describe()
    assert {node.instance_id for node in state.nodes} == nodes
    assert [(each.instance_id, each.why) for each in state.untrusted] == [(alike, "not launched by this machine")]
    assert not world.prepare(make_config())
    assert world.prepare(make_config()).left_alone == state.untrusted
    grown = world.up(make_config(nodes=3))
    assert [node.index for node in grown.nodes] == [0, 1, 2]
    assert alike not in {node.instance_id for node in grown.nodes}
    [head] = world.resize(make_config(nodes=1)).nodes
    assert [each.instance_id for each in world.describe().untrusted] == [alike]
    # Nor is a node of this machine one outside the cluster's group.
    ec2 = world.clients.ec2
    other = ec2.create_security_group(GroupName="other", Description="other", VpcId=head.vpc_id or "")["GroupId"]
    ec2.modify_instance_attribute(InstanceId=head.instance_id, Groups=[other])
    state = world.describe()
    assert state.nodes == ()
    assert {each.instance_id: each.is_known for each in state.untrusted} == {head.instance_id: True, alike: False}
    assert alike in {each.resource_id for each in world.down().deleted}
    assert world.resources() == {"groups": 1}


def test_adopt_chooses_untrusted_instances() -> None:
    one, other = make_untrusted(), make_untrusted(instance_id="i-8", problems=("its key pair is 'mine'",))
    state = ClusterState(name=NAME, nodes=(make_node(0),), untrusted=(one, other))
    assert choose(state, ()) == (one, other)
    assert choose(state, ("i-8",)) == (other,)
    with pytest.raises(NotFoundError, match="i-0 is node-0 of cluster demo already"):
        choose(state, ("i-0",))
    with pytest.raises(NotFoundError, match="has no instance i-7"):
        choose(state, ("i-7",))


def test_an_instances_tags_cannot_control_the_terminal() -> None:
    harmless = render_candidates([make_untrusted(owner="eve", key_name="eve")])
    shown = render_candidates([make_untrusted(owner="arn:aws:iam::1:user/\x1b]0;eve\x07\nnode-0", key_name="\x1b[2J")])
    assert len(shown.splitlines()) == len(harmless.splitlines())  # the text cannot look like another instance
    on_a_terminal = escape(shown)
    assert r"\x1b]0;eve\x07\nnode-0" in on_a_terminal
    assert on_a_terminal.replace("\n", "").isprintable()
