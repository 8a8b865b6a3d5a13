"""`cluster cost` as text and as JSON."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.views.cost import cost_document, render_costs
from cluster.views.status import render_usd
from provision.cost.bill import ClusterBill, NodeBill
from provision_world import make_bill

NOW = 1_900_010_000.0


def node(index: int, **values: Any) -> NodeBill:
    return make_bill(
        f"i-{index}", **{"name": f"node-{index}", "instance_type": "p4d.24xlarge", "launched_at": NOW - 7200,
        "ran_s": 7200.0, "instance_usd": 43.9152, "disk_usd": 0.0222, "address_usd": 0.01, "usd_per_hour": 21.9737,
        **values},
    )  # fmt: skip


SPOT = node(1, market="spot", instance_usd=17.5, usd_per_hour=8.76)
CURRENT = ClusterBill(launched_at=NOW - 7200, ended_at=None, nodes=(node(0), SPOT), volumes=())
ENDED = replace(
    CURRENT,
    launched_at=NOW - 90000,
    ended_at=NOW - 80000,
    nodes=(node(0, state="ended", usd_per_hour=0.0), replace(SPOT, state="ended", usd_per_hour=0.0, unseen_usd=3.2)),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def test_the_current_cluster_and_earlier_ones() -> None:
    lines = render_costs("demo", [ENDED, CURRENT], now=NOW, price_note="simulated").splitlines()
    assert lines[0].split() == ["NODE", "TYPE", "MARKET", "STATE", "RAN", "INSTANCE", "DISK", "ADDRESS", "TOTAL",
                                "PRICE/h"]  # fmt: skip
    assert lines[1].split() == ["node-0", "p4d.24xlarge", "on-demand", "running", "2h00m", "$43.92", "$0.0222",
                                "$0.0100", "$43.95", "$21.97"]  # fmt: skip
    assert lines[3] == "cluster  $61.48 so far, $30.73 per hour now; 4.00 node hours in 2h00m"
    assert lines[5] == "earlier clusters of this name"
    assert lines[7].split()[-5:] == ["2", "4.00", "$43.95", "$17.53", "$61.48"]
    assert lines[8] == "unknown  when node-1 ended: up to $3.20 more (counted until last seen)"
    assert lines[9] == "total  $122.96"
    assert lines[10] == "(simulated; without traffic, images, S3 objects, EFS and FSx)"


def test_without_a_cluster() -> None:
    assert render_costs("demo", [], now=NOW) == "cluster demo does not exist now"
    assert render_costs("demo", [ENDED], now=NOW).startswith("cluster demo does not exist now\n")
    document = cost_document("demo", [], now=NOW)
    assert [document[name] for name in ("current", "earlier", "cost_usd", "usd_per_hour")] == [None, [], 0, 0]


def test_an_unknown_price_is_not_a_small_one() -> None:
    unknown = replace(CURRENT, nodes=(node(0, instance_usd=None, usd_per_hour=None), SPOT))
    assert "cluster  unknown so far, unknown per hour now" in render_costs("demo", [unknown], now=NOW)
    document = cost_document("demo", [unknown], now=NOW)
    assert (document["cost_usd"], document["usd_per_hour"], document["current"]["on_demand_usd"]) == (None, None, None)
    assert document["current"]["spot_usd"] == 17.5322


def test_an_amount_is_not_nothing_because_it_is_small() -> None:
    assert [render_usd(usd) for usd in (0, 0.00001, 0.0042, 1.2)] == ["$0.00", "<$0.0001", "$0.0042", "$1.20"]


def test_the_costs_as_json() -> None:
    document = json.loads(json.dumps(cost_document("demo", [ENDED, CURRENT], now=NOW, price_note="simulated")))
    assert document["simulated"]
    assert document["at"] == "2030-03-17T20:33:20.000+00:00"
    (earlier,) = document["earlier"]
    assert (earlier["ended_at"], earlier["unseen_usd"]) == ("2030-03-16T22:20:00.000+00:00", 3.2)
    current = document["current"]
    assert (current["ended_at"], current["cost_usd"], current["instances_usd"]) == (None, 61.4796, 61.4152)
    written = {name: getattr(SPOT, name) for name in SPOT.__struct_fields__ if not name.endswith("_at")}
    assert written.items() <= current["nodes"][1].items()
    assert current["nodes"][1]["launched_at"] == "2030-03-17T18:33:20.000+00:00"
    assert (current["nodes"][1]["cost_usd"], document["cost_usd"]) == (17.5322, round(2 * 61.4796, 4))
