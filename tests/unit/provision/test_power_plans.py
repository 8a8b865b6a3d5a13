from typing import Any

import pytest
from msgspec.structs import replace

from cluster.commands.adopt import render_allowed
from cluster.commands.stop import render_stopped
from foundation.errors import ClusterError, NotFoundError
from provision.allow import plan_allow
from provision.model import ClusterState, Node
from provision.plan import Step
from provision.power import StartInstances, StopInstances, plan_start, plan_stop
from provision.resources.instances import WaitForStopped
from provision_world import CALLER_NETWORK, NAME, PUBLIC_KEY, make_node, make_state

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
        (
            (RUNNING, PENDING, STOPPING, STOPPED),
            (StopInstances(nodes=(RUNNING, PENDING)), WaitForStopped(instance_ids=("i-0", "i-1", "i-2"))),
        ),
        ((STOPPED,), ()),
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
        ((replace(RUNNING, public_ip=None),), (StartInstances(nodes=(replace(RUNNING, public_ip=None),)),)),
        (
            (RUNNING, PENDING, STOPPING, STOPPED),
            (WaitForStopped(instance_ids=("i-2",)), StartInstances(nodes=(PENDING, STOPPING, STOPPED))),
        ),
    ],
)
def test_start(nodes: tuple[Node, ...], wanted: tuple[Step, ...]) -> None:
    assert start(make_state(*nodes)) == wanted


def test_what_this_machine_cannot_reach_is_not_started() -> None:
    with pytest.raises(ClusterError, match="is not on this machine"):
        start(make_state(STOPPED), local_key=None)


@pytest.mark.parametrize(("price", "message"), [(0.08, "$16.00 per month"), (None, "unknown per month")])
def test_stop_reports_the_cost_of_the_disks(price: float | None, message: str) -> None:
    assert message in render_stopped(NAME, disks_gib=200, usd_per_gib_month=price)


@pytest.mark.parametrize(
    ("nodes", "what"), [((), "no such cluster"), ((RUNNING,), "the security group cluster-demo is missing")]
)
def test_allow_needs_a_security_group(nodes: tuple[Node, ...], what: str) -> None:
    with pytest.raises(NotFoundError, match=what):
        plan_allow(make_state(*nodes, security_groups=()), ssh_from=OTHER)


@pytest.mark.parametrize(
    ("before", "open_to", "words"),
    [
        ([CALLER_NETWORK], [CALLER_NETWORK], f"ssh is allowed from {CALLER_NETWORK}, as it was"),
        ([OTHER], [OTHER, "192.0.2.0/24"], f"ssh is allowed from {CALLER_NETWORK}; it was from {OTHER}; {BY_HAND}"),
    ],
)
def test_allow_reports_the_networks_before_and_after(before: list[str], open_to: list[str], words: str) -> None:
    assert render_allowed(before, open_to, ssh_from=CALLER_NETWORK) == words
