"""stop, start and allow: the plan for each state, and the messages."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.commands.adopt import render_allowed
from cluster.commands.stop import render_stopped
from foundation.errors import ClusterError, NotFoundError
from provision.model import ClusterState, Node, SecurityGroup
from provision.pause import StartInstances, StopInstances, WaitForStopped, plan_allow, plan_start, plan_stop
from provision.plan import Step
from provision.resources.security_group import AuthorizeIngress, RevokeIngress
from provision_world import CALLER_NETWORK, NAME, PUBLIC_KEY, make_group, make_node, make_state

OTHER = "198.51.100.1/32"
BY_HAND = "also from 192.0.2.0/24, by rules that were made by hand"


def start(state: ClusterState, **values: Any) -> tuple[Step, ...]:
    asked: dict[str, Any] = {"ssh_from": CALLER_NETWORK, "ssh_address": "public", "local_key": PUBLIC_KEY, **values}
    return plan_start(state, **asked).steps


RUNNING, PENDING, STOPPING, STOPPED = (
    make_node(index, state=state, public_ip=None if state == "stopped" else f"198.51.100.{index}")
    for index, state in enumerate(("running", "pending", "stopping", "stopped"))
)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((RUNNING,), (StopInstances(nodes=(RUNNING,)), WaitForStopped(instance_ids=("i-0",)))),
        (
            (RUNNING, PENDING, STOPPING, STOPPED),
            (StopInstances(nodes=(RUNNING, PENDING)), WaitForStopped(instance_ids=("i-0", "i-1", "i-2"))),
        ),
        ((STOPPING, STOPPED), (WaitForStopped(instance_ids=("i-2",)),)),
        ((STOPPED,), ()),
        ((replace(STOPPED, market="spot"),), ()),
    ],
)
def test_stop(nodes: tuple[Node, ...], wanted: tuple[Step, ...]) -> None:
    assert plan_stop(make_state(*nodes)).steps == wanted


def test_stop_rejects_spot_instances() -> None:
    spot = replace(RUNNING, market="spot")
    with pytest.raises(ClusterError, match=r"^nodes 0-1 of cluster demo are spot instances") as caught:
        plan_stop(make_state(spot, replace(PENDING, market="spot")))
    with pytest.raises(ClusterError, match=r"^node 0 of cluster demo is a spot instance, ") as caught:
        plan_stop(make_state(spot, PENDING))
    assert (caught.value.hint or "").startswith("cluster resize 0")


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((RUNNING,), ()),
        ((RUNNING, STOPPED), (StartInstances(nodes=(STOPPED,)),)),
        ((PENDING,), (StartInstances(nodes=(PENDING,)),)),
        ((replace(RUNNING, public_ip=None),), (StartInstances(nodes=(replace(RUNNING, public_ip=None),)),)),
        (
            (RUNNING, PENDING, STOPPING, STOPPED),
            (WaitForStopped(instance_ids=("i-2",)), StartInstances(nodes=(PENDING, STOPPING, STOPPED))),
        ),
    ],
)
def test_start(nodes: tuple[Node, ...], wanted: tuple[Step, ...]) -> None:
    assert start(make_state(*nodes)) == wanted


def test_start_needs_no_public_address_for_private_ones() -> None:
    hidden = replace(RUNNING, public_ip=None)
    asleep = replace(STOPPED, public_ip=None)
    steps = start(make_state(hidden, asleep), ssh_address="private")
    assert steps == (StartInstances(nodes=(asleep,), public_address=False),)


def test_start_first_allows_ssh_from_the_caller() -> None:
    assert start(make_state(STOPPED), ssh_from=OTHER) == (
        AuthorizeIngress(group_id="sg-1", ssh_from=OTHER, members=False),
        RevokeIngress(group_id="sg-1", ssh_from=(CALLER_NETWORK,)),
        StartInstances(nodes=(STOPPED,)),
    )


@pytest.mark.parametrize(
    ("key", "said"), [(None, "is not on this machine"), ("ssh-ed25519 BBBB", "is not the one on this machine")]
)
def test_what_this_machine_cannot_reach_is_not_started(key: str | None, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        start(make_state(STOPPED), local_key=key)


def test_stop_and_start_need_nodes() -> None:
    with pytest.raises(NotFoundError, match="no nodes to stop"):
        plan_stop(make_state())
    with pytest.raises(NotFoundError, match="no nodes to start"):
        start(make_state())


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        (make_group(), ()),
        (
            make_group(ssh_from=(OTHER,), ssh_open_to=(OTHER,)),
            (
                AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),
                RevokeIngress(group_id="sg-1", ssh_from=(OTHER,)),
            ),
        ),
        (
            make_group(ssh_from=(OTHER, CALLER_NETWORK), ssh_open_to=(OTHER, CALLER_NETWORK)),
            (RevokeIngress(group_id="sg-1", ssh_from=(OTHER,)),),
        ),
        # Somebody allowed the same network by hand: nothing to add.
        (make_group(ssh_from=()), ()),
        (
            make_group(ssh_from=(), ssh_open_to=("192.0.2.0/24",)),
            (AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),),
        ),
        (make_group(open_to_members=False), (AuthorizeIngress(group_id="sg-1", ssh_from=None, members=True),)),
    ],
)
def test_allow(group: SecurityGroup, wanted: tuple[Step, ...]) -> None:
    assert plan_allow(make_state(RUNNING, security_groups=(group,)), ssh_from=CALLER_NETWORK).steps == wanted


def test_allow_uses_the_nodes_group() -> None:
    groups = (make_group(group_id="sg-0", vpc_id="vpc-0"), make_group())
    plan = plan_allow(make_state(RUNNING, security_groups=groups), ssh_from=OTHER)
    assert plan.steps[0] == AuthorizeIngress(group_id="sg-1", ssh_from=OTHER, members=False)


@pytest.mark.parametrize(
    ("nodes", "groups", "said"),
    [
        ((), (), "no such cluster"),
        ((), (make_group(ours=False),), "no such cluster"),
        ((RUNNING,), (), "the security group cluster-demo is missing"),
    ],
)
def test_allow_needs_a_security_group(nodes: tuple[Node, ...], groups: tuple[SecurityGroup, ...], said: str) -> None:
    with pytest.raises(NotFoundError, match=said):
        plan_allow(make_state(*nodes, security_groups=groups), ssh_from=OTHER)


@pytest.mark.parametrize(
    ("before", "open_to", "said"),
    [
        ([OTHER], [OTHER], f"ssh is allowed from {CALLER_NETWORK}; it was from {OTHER}"),
        ([CALLER_NETWORK], [CALLER_NETWORK], f"ssh is allowed from {CALLER_NETWORK}, as it was"),
        ([], [], f"ssh is allowed from {CALLER_NETWORK}; it was from nowhere"),
        (
            [OTHER],
            [OTHER, "192.0.2.0/24"],
            f"ssh is allowed from {CALLER_NETWORK}; it was from {OTHER}; {BY_HAND}",
        ),
        ([], [CALLER_NETWORK], f"ssh is allowed from {CALLER_NETWORK}, as it was"),
    ],
)
def test_allow_reports_the_networks_before_and_after(before: list[str], open_to: list[str], said: str) -> None:
    assert render_allowed(before, open_to, ssh_from=CALLER_NETWORK) == said


@pytest.mark.parametrize(("price", "said"), [(0.08, "$16.00 per month"), (None, "unknown per month")])
def test_stop_reports_the_cost_of_the_disks(price: float | None, said: str) -> None:
    assert said in render_stopped(NAME, disks_gib=200, usd_per_gib_month=price)
