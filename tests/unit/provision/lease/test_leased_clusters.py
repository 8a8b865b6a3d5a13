"""Clusters with a lease, against the sandbox's EC2 in this process: launch, kill points, resize, start, and the end."""

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from foundation.errors import ClusterError, ConfigError
from foundation.progress import silent
from provision.apply import apply
from provision.lease.arm import SetLease, plan_lease
from provision.lease.lease_plan import Spending
from provision.lease.terms import Lease, parse_lease, render_lease
from provision.lease.user_data import render_user_data
from provision.power import prepare_start
from provision.preflight.prices import disk_rate
from provision.status import SWITCHED_OFF, find_allocation, find_lease_end
from provision_world import (
    Killed,
    World,
    complete,
    make_config,
    make_group,
    make_lease_config,
    make_node,
    make_state,
    when,
)

NOW = 1_900_000_000.0
OFF = f"{SWITCHED_OFF}: Instance initiated shutdown"


def leases(world: World) -> set[Any]:
    """The leases of all instances. Checks that an instance's user data has the lease of its tag."""
    found = set()
    for instance in world.sandbox.backend.sandbox_instances():
        if instance.state in {"terminated", "shutting-down"}:
            continue
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        lease = parse_lease(tags["cluster:lease"])
        data = base64.b64decode(str(instance.user_data))
        assert data == render_user_data(lease, cluster="demo")
        found.add(lease)
    return found


def test_a_repeated_launch_has_the_same_deadline(late_world: World) -> None:
    """EC2 does not list it yet. With another deadline, EC2 would refuse its token, or launch the nodes twice."""
    late_world.lease = make_lease_config(lifetime="1h")
    late_world.kill_up("launch")
    (lease,) = leases(late_world)
    late_world.time.sleep(1)
    state = late_world.up(make_config())
    assert leases(late_world) == {lease}
    assert late_world.resources() == complete(2)
    assert late_world.files.launches() == ()
    assert state.lease == lease


def test_a_launch_arms_the_lease(world: World) -> None:
    """New nodes share it, and `resize 0` ends it."""
    world.lease = make_lease_config(lifetime="1h", idle="30m")
    state = world.up(make_config())
    (lease,) = leases(world)
    assert lease.until == pytest.approx(world.time.time() + 3600, abs=120)
    assert (lease.idle_s, lease.then, state.lease) == (1800.0, "down", lease)
    instances = world.sandbox.backend.sandbox_instances()
    assert {instance.instance_initiated_shutdown_behavior for instance in instances} == {"terminate"}
    assert {instance.metadata_options.instance_metadata_tags for instance in instances} == {"enabled"}
    assert [group.lease for group in state.security_groups] == [render_lease(lease)]
    world.time.sleep(600)
    world.lease = make_lease_config(lifetime="9h")  # changed since
    world.resize(make_config(nodes=4))
    assert leases(world) == {lease}
    world.time.sleep(3600)
    with pytest.raises(ClusterError, match="the lifetime of cluster demo ended at"):
        world.resize(make_config(nodes=5))
    world.resize(make_config(nodes=0))
    ended = world.settled()
    assert not ended.lease.limits
    assert find_lease_end(ended, now=world.time.time() + 9999) is None


def test_new_nodes_share_that_there_is_no_lease(world: World) -> None:
    world.up(make_config())
    world.lease = make_lease_config(lifetime="1h")  # counts at the next launch of a cluster without nodes
    assert world.resize(make_config(nodes=3)).lease is None


def test_a_lease_that_has_ended_the_nodes_does_not_end_others(world: World) -> None:
    """It is still on the group when [lease] is removed from cluster.toml."""
    world.lease = make_lease_config(lifetime="1h")
    world.up(make_config())
    for instance in world.sandbox.backend.sandbox_instances():
        instance.shut_down_from_inside()
    world.settled()
    world.lease = make_lease_config()
    state = world.up(make_config())
    assert state.lease is None or not state.lease.limits
    assert not world.prepare(make_config())


def test_a_budget_needs_prices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.lease = make_lease_config(budget_usd=200.0)
    with monkeypatch.context() as patch:
        patch.setattr("provision.preflight.places.find_volume_price", lambda _: None)
        with pytest.raises(ConfigError, match=r"\[lease\] budget_usd = 200: a price is unknown"):
            world.prepare(make_config())
    world.up(make_config())
    (lease,) = leases(world)
    # Two c5.xlarge, 200 GiB of gp3, two public addresses; see sandbox/ec2_sandbox/api/prices.py.
    rate = 2 * 0.17 + (disk_rate(200, 0.08) or 0) + 0.01
    assert (lease.budget_until - lease.set_at) / 3600 == pytest.approx(200 / rate, abs=0.01)
    world.time.sleep(lease.budget_until - lease.set_at)
    with pytest.raises(ClusterError, match="the budget of cluster demo ended at") as caught:
        world.resize(make_config(nodes=3))
    assert "cluster lease --budget" in str(caught.value.hint)


def test_more_nodes_spend_a_budget_sooner(world: World) -> None:
    """The tags have the earlier end before the launch, which may be killed, or whose set-up may fail."""

    def kill() -> None:
        raise Killed

    def find_left_s() -> float:
        (lease,) = {parse_lease(node.lease or "") for node in world.describe().nodes}
        assert lease is not None
        return float(lease.budget_until or 0) - world.time.time()

    world.lease = make_lease_config(budget_usd=200.0)
    world.up(make_config())
    left_s = find_left_s()
    with pytest.raises(Killed):
        world.resize(make_config(nodes=4), report=when("launch", kill, kind="start"))
    assert find_left_s() == pytest.approx(left_s / 2, rel=0.01)
    world.resize(make_config(nodes=4))
    assert (len(world.describe().nodes), find_left_s()) == (4, pytest.approx(left_s / 2, rel=0.01))


def test_a_change_is_in_the_tags() -> None:
    lease = Lease(set_at=NOW, until=NOW + 60)
    (step,) = plan_lease(make_state(make_node(0), make_node(1)), lease)
    assert isinstance(step, SetLease)
    assert [node.index for node in step.behaving] == [0, 1]  # without a lease, a shutdown would only stop the nodes
    assert plan_lease(make_state(make_node(0, lease=render_lease(lease))), lease) == ()
    (again,) = plan_lease(make_state(make_node(0, lease=render_lease(lease))), lease._replace(set_at=NOW + 1))
    assert isinstance(again, SetLease)
    assert not again.behaving


def test_start_begins_a_new_lease(world: World) -> None:
    world.lease = make_lease_config(lifetime="1h", budget_usd=5.0, then="stop")
    world.up(make_config())
    world.time.sleep(3600)
    for instance in world.sandbox.backend.sandbox_instances():
        instance.shut_down_from_inside()
        instance.finish_stop()
    state = world.describe()
    end = find_lease_end(state, now=world.time.time())
    assert (end or "").startswith("its lifetime ended at ")
    assert find_allocation(state, wanted=2, lease_end=end).why == f"{end}; cluster start starts it"
    config = make_lease_config(lifetime="2h", budget_usd=5.0, then="stop")
    spending = Spending(usd_per_hour=2.0, usd=1.0)
    plan = prepare_start(
        world.clients, name="demo", config=make_config(), files=world.files, lease=config, spending=spending
    )
    apply(plan, clients=world.clients, files=world.files, report=silent)
    (lease,) = leases(world)
    assert lease.until == pytest.approx(world.time.time() + 7200, abs=120)
    assert lease.budget_until == pytest.approx(world.time.time() + 7200, abs=120)


GROUP = Lease(set_at=NOW, until=NOW + 60, idle_s=1800.0)


@pytest.mark.parametrize(
    ("nodes", "ended", "lease", "now", "message"),
    [
        ([], {"i-1": OFF, "i-2": OFF}, GROUP, NOW + 99, "its lifetime ended at"),
        ([], {"i-1": OFF, "i-2": OFF}, GROUP, NOW + 30, "its lease ended it (idle = 30m)"),
        ([], {}, GROUP, NOW + 9999, "its lifetime ended at"),  # EC2 has forgotten the nodes
        ([], {"i-1": "Server.SpotInstanceTermination: x", "i-2": OFF}, GROUP, NOW + 30, None),
        ([], {"i-1": OFF}, None, NOW, None),
        ([{"state": "running"}], {"i-9": OFF}, GROUP, NOW + 99, None),
        ([{"state": "stopped", "state_reason": OFF}], {}, GROUP, NOW + 99, "its lifetime ended at"),
    ],
)
def test_whether_the_lease_ended_the_cluster(
    nodes: list[dict[str, Any]], ended: dict[str, str], lease: Lease | None, now: float, message: str | None
) -> None:
    groups = (make_group(lease=None if lease is None else render_lease(lease)),)
    made = [make_node(index, **values) for index, values in enumerate(nodes)]
    state = make_state(*made, security_groups=groups, ended=ended)
    found = find_lease_end(state, now=now)
    assert (found or "").startswith(message or "")
    assert (found is None) is (message is None)
    if message is not None and not nodes:
        shutting_down = replace(state, ending=tuple(ended))
        assert find_allocation(shutting_down, wanted=2, lease_end=found).state == "ended"
        allocation = find_allocation(state, wanted=2, lease_end=found)
        assert allocation.state == "ended"
        assert (allocation.why or "").endswith("cluster down removes what is left")
