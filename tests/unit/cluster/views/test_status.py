"""The state, errors and cost of a cluster, and how status and list show them."""

import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.views.clusters import RegionClusters, list_document, render_clusters, render_end
from cluster.views.status import Status, render_status, status_document
from provision.cost.bill import ClusterBill, VolumeBill
from provision.describe import describe_clusters
from provision.lease.terms import Lease, render_lease
from provision.model import ClusterState, Node, UntrustedInstance
from provision.preflight.prices import Prices
from provision.resources.shared_volume import SharedVolume
from provision.status import find_allocation
from provision_world import (
    LAUNCHED_AT,
    NAME,
    World,
    make_bill,
    make_config,
    make_group,
    make_instance,
    make_node,
    make_state,
)

NOW = LAUNCHED_AT + timedelta(hours=10)
PRICES: Prices = {("on-demand", "c5.xlarge", "us-east-1a"): 0.17, ("spot", "c5.xlarge", "us-east-1a"): 0.05}
BY_CALL = "Client.UserInitiatedShutdown: User initiated shutdown"
LOST = "Server.ScheduledStop: Stopped due to scheduled retirement"
SPOT = "Server.SpotInstanceTermination: Spot instance termination"


def stopped(index: int, reason: str | None = BY_CALL, **values: Any) -> Node:
    return make_node(index, **{"state": "stopped", "state_reason": reason, "public_ip": None, **values})


def untrusted(index: int, state: str = "running") -> UntrustedInstance:
    """A node that another machine, or this one with another HOME, has launched."""
    return make_instance(UntrustedInstance, instance_id=f"i-{index}", state=state, is_known=False)


ELSEWHERE = "cluster adopt makes those that you know nodes of this machine, cluster down ends all"
RESTARTED = make_node(0, state="pending", started_at=LAUNCHED_AT + timedelta(hours=9))
TOO_FEW = "of the 2 nodes that cluster.toml asks for"


@pytest.mark.parametrize(
    ("state", "at_work", "wanted", "why"),
    [
        (make_state(security_groups=()), None, "none", None),
        (make_state(ended={"i-9": BY_CALL}), None, "none", None),
        (make_state(ended={"i-9": SPOT}), None, "degraded", f"0 {TOO_FEW}"),
        (make_state(untrusted=(untrusted(0), untrusted(1))), None, "not-adopted", ELSEWHERE),
        (make_state(make_node(0), make_node(1), untrusted=(untrusted(2),)), None, "ready", None),
        (make_state(make_node(0), make_node(1)), None, "ready", None),
        (make_state(make_node(0)), None, "degraded", f"1 {TOO_FEW}"),
        (make_state(make_node(0), make_node(1)), 77, "resizing", "a command is changing the cluster (process 77)"),
        (make_state(make_node(0), make_node(1, state="pending")), None, "resizing", "node 1 is pending"),
        (make_state(RESTARTED, replace(RESTARTED, index=1)), 77, "starting", "nodes 0-1 are pending"),
        (make_state(make_node(0), make_node(1, state="stopping")), 77, "stopping", "node 1 is stopping"),
        (make_state(stopped(0)), None, "stopped", "cluster start starts it"),
        (make_state(make_node(0), stopped(1)), None, "degraded", "node 1 is stopped"),
        (make_state(stopped(0, LOST)), None, "degraded", f"node 0 is stopped; 1 {TOO_FEW}"),
    ],
)
def test_the_state_of_a_cluster(state: ClusterState, at_work: int | None, wanted: str, why: str | None) -> None:
    allocation = find_allocation(state, wanted=2, at_work=at_work)
    assert (allocation.state, allocation.why) == (wanted, why)


def make_status(state: ClusterState, **values: Any) -> Status:
    """A status with ten hours of each instance, at $0.17 per hour while it runs, and of a volume at $0.01 per hour."""
    start = LAUNCHED_AT.timestamp()
    nodes = tuple(
        make_bill(
            node.instance_id, state=node.state, zone=node.zone, instance_type=node.instance_type, market=node.market,
            launched_at=start, ran_s=36000.0, instance_usd=1.7, usd_per_hour=0.17 if node.state == "running" else 0.0,
        )
        for node in (*state.nodes, *state.untrusted)
    )  # fmt: skip
    volume = VolumeBill(
        volume_id="vol-1", size_gib=100, started_at=start, ended_at=None, cost_usd=0.1, usd_per_hour=0.01
    )  # fmt: skip
    bill = ClusterBill(launched_at=start, ended_at=None, nodes=nodes, volumes=(volume,))
    return Status(**{"state": state, "wanted": 2, "now": NOW, "bill": bill, **values})


def test_status_as_text() -> None:
    shown = render_status(make_status(make_state(make_node(0), stopped(1, LOST), ended={"i-9": SPOT})))
    assert shown.splitlines() == [
        "NODE    ROLE    STATE    TYPE       MARKET     ZONE        PRIVATE    PUBLIC         AGE     INSTANCE",
        "node-0  head    running  c5.xlarge  on-demand  us-east-1a  10.0.0.10  198.51.100.10  10h00m  i-0",
        "node-1  worker  stopped  c5.xlarge  on-demand  us-east-1a  10.0.0.11  -              10h00m  i-1",
        "error  node-1 (i-1) stopped: Stopped due to scheduled retirement (Server.ScheduledStop)",
        "error  i-9 ended: spot interruption, Spot instance termination (Server.SpotInstanceTermination)",
        "state  degraded: node 1 is stopped",
        "lease  none: only cluster down ends the nodes",
        "price  $0.18 per hour now, $3.50 so far (20.00 node hours)",
    ]


@pytest.mark.parametrize(
    ("set_up", "line"),
    [
        ({"i-0", "i-1", "i-9"}, "state  ready"),
        ({"i-0"}, "state  not set up: node-1; cluster up completes the set-up"),
    ],
)
def test_nodes_that_run_and_cannot_train_yet(set_up: set[str], line: str) -> None:
    status = replace(make_status(make_state(make_node(0), make_node(1))), set_up=set_up)
    assert line in render_status(status).splitlines()


def test_status_as_json() -> None:
    status = make_status(make_state(make_node(0), stopped(1, LOST), ending=("i-9",)), at_work=77)
    document = json.loads(json.dumps(status_document(status)))
    assert document["state"] == "resizing"
    assert document["node_counts"] == {"running": 1, "stopped": 1}
    assert (document["asked_nodes"], document["process_at_work"], document["ending"]) == (2, 77, ["i-9"])
    assert document["nodes"][0]["market"] == "on-demand"
    [error] = document["errors"]
    assert (error["instance_id"], error["node"], error["spot_interruption"]) == ("i-1", "node-1", False)
    assert (error["code"], error["message"]) == ("Server.ScheduledStop", "Stopped due to scheduled retirement")
    cost = document["cost"]
    assert (cost["at"], cost["usd_per_hour"]) == (NOW.isoformat(), pytest.approx(0.18))
    assert cost["nodes"]["node-0"]["ran_s"] == 36000
    assert cost["cost_usd"] == pytest.approx(3.5)


def test_all_clusters_of_the_region_are_listed(world: World) -> None:
    world.up(make_config(nodes=2))
    ec2 = world.clients.ec2
    empty = {"cluster:name": "empty", "cluster:owner": "arn:aws:iam::1:user/bob"}
    for name, tags in {
        "cluster-empty": empty,
        "strange": {"cluster:name": "../etc"},
        "other": {"Name": "other"},
    }.items():
        pairs: Any = [{"Key": key, "Value": value} for key, value in tags.items()]
        ec2.create_key_pair(KeyName=name, TagSpecifications=[{"ResourceType": "key-pair", "Tags": pairs}])
    world.calls.made.clear()

    demo, other = describe_clusters(ec2, known=lambda _: world.files.known_instances())

    assert len(world.calls.made) == 4
    assert (demo.disks_gib, other.disks_gib) == (200, 0)
    assert (demo.name, len(demo.nodes), demo.ending) == (NAME, 2, ())
    assert demo.key_pair is not None
    assert demo.key_pair.public_key == world.files.find_public_key()
    assert (demo.owner or "").startswith("arn:aws:")
    assert (other.name, other.nodes, other.owner) == ("empty", (), "arn:aws:iam::1:user/bob")


CLUSTERS = (
    ClusterState(
        name="demo",
        nodes=(make_node(0), replace(make_node(1), state="stopped")),
        disks_gib=200,
        owner="arn:aws:iam::123456789012:user/ada",
    ),
    ClusterState(name="lab", nodes=(make_node(0, instance_type="p9.huge"),), ending=("i-8", "i-9")),
    ClusterState(name="rest", owner="arn:aws:sts::123456789012:assumed-role/Admin/eve", disks_gib=500),  # kept
)


LISTED = RegionClusters(
    region="us-east-1", clusters=CLUSTERS, prices=PRICES, keys_here={"demo"}, now=NOW, usd_per_gib_month=0.08
)


def test_a_list_as_text() -> None:
    shown = render_clusters(LISTED)
    assert shown.splitlines() == [
        "NAME  NODES                       TYPE       AGE     ENDS  DISKS    PRICE/h  OWNER    KEY",
        "demo  1 running, 1 stopped        c5.xlarge  10h00m  -     200 GiB  $0.20    ada      here",
        "lab   1 running, 2 shutting-down  p9.huge    10h00m  -     -        unknown  unknown  -",
        "rest  none                        -          -       -     500 GiB  $0.0548  eve      -",
    ]
    assert render_clusters(replace(LISTED, clusters=())) == "no clusters in us-east-1"
    block = ClusterState(name="block", nodes=(make_node(0, is_block=True),))  # paid in advance
    assert LISTED.find_price(block) == 0.005  # its address


@pytest.mark.parametrize(
    ("lease", "shown"),
    [
        (None, "-"),
        (Lease(set_at=0.0), "-"),
        (Lease(until=3600.0), "1h00m"),
        (Lease(until=3600.0, budget_usd=1.0, budget_until=600.0), "10m00s"),
        (Lease(until=-60.0), "now"),
        (Lease(idle_s=3600.0, budget_usd=200.0, budget_until=600.0), "10m00s"),
        (Lease(idle_s=3600.0), "idle 1h"),
    ],
)
def test_when_a_listed_cluster_ends(lease: Lease | None, shown: str) -> None:
    assert render_end(lease, now=0.0) == shown


def test_a_list_as_json() -> None:
    demo, lab, rest = list_document(LISTED)
    assert {
        "node_counts": {"running": 1, "stopped": 1}, "instance_types": ["c5.xlarge"], "disks_gib": 200,
        "launched_at": LAUNCHED_AT.isoformat(), "owner": "arn:aws:iam::123456789012:user/ada", "key_here": True,
        "lease": None, "untrusted": [], "region": "us-east-1",
    }.items() <= demo.items()  # fmt: skip
    assert demo["usd_per_hour"] == pytest.approx(0.1969, abs=0.0001)
    assert (lab["usd_per_hour"], lab["ending"]) == (None, ["i-8", "i-9"])
    assert (rest["launched_at"], rest["key_here"]) == (None, False)


def test_status_shows_the_heads_volume_and_its_cost() -> None:
    attached = SharedVolume(
        volume_id="vol-1", zone="us-east-1a", size_gib=100, state="in-use", instance_id="i-0", attachment="attached",
        device="/dev/sdf",
    )  # fmt: skip
    kept = replace(attached, state="available", instance_id=None, attachment=None, keep=True)
    for state, volume, message in (
        (make_state(make_node(0)), attached, "attached to node-0: $8.00 per month; cluster down deletes it"),
        (make_state(security_groups=()), kept, "us-east-1a: $8.00 per month; cluster down keeps it"),
    ):
        shown = Status(state=state, wanted=1, now=NOW, volumes=(volume,), volume_usd_per_gib_month=0.08)
        assert f"volume vol-1, 100 GiB, {message}" in render_status(shown).splitlines()
        [document] = status_document(shown)["volumes"]
        assert (document["volume_id"], document["usd_per_month"], document["keep"]) == ("vol-1", 8.0, volume.keep)


def test_a_stopped_cluster_has_no_lease_that_counts() -> None:
    lines = render_status(make_status(make_state(stopped(0), stopped(1)))).splitlines()
    assert "lease  none while the nodes are stopped: cluster start begins that of cluster.toml" in lines


def test_nodes_of_another_machine() -> None:
    """The lease of the group alone does not tell: the nodes may still run."""
    group = make_group(lease=render_lease(Lease(set_at=1.8e9, idle_s=3600.0)))
    status = make_status(make_state(untrusted=(untrusted(0), untrusted(1)), security_groups=(group,)))
    shown = render_status(status)
    assert "state  running, but not set up from this machine: cluster adopt " in shown
    assert "price  $0.35 per hour now" in shown
    document = status_document(status)
    assert (document["state"], document["lease_ended"]) == ("not-adopted", None)
