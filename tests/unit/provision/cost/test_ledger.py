from functools import reduce
from typing import Any

import pytest

from provision.cost import storage
from provision.cost.ledger import Ledger, LedgerNode, LedgerVolume, Observation, SeenNode, note
from provision.describe import parse_transition

START = 1_900_000_000.0
HOUR = 3600.0


def shown(state: Any = "running", **values: Any) -> SeenNode:
    defaults: dict[str, Any] = {
        "instance_id": "i-0",
        "name": "node-0",
        "instance_type": "c5.xlarge",
        "market": "on-demand",
        "zone": "us-east-1a",
        "launched_at": START,
        "started_at": START,
        "disk_gib": 100,
        "has_address": state == "running",
    }
    return SeenNode(state=state, **{**defaults, **values})


def look(hours: float, *nodes: SeenNode, exists: bool = True, **values: Any) -> Observation:
    return Observation(at=START + hours * HOUR, region="us-east-1", exists=exists, nodes=nodes, **values)


def hours(node: LedgerNode) -> list[tuple[float, float | None, float]]:
    """Each period in hours since the start: its begin, its end, and the unseen part of it."""
    return [
        ((p.start - START) / HOUR, None if p.end is None else (p.end - START) / HOUR, p.unseen_s / HOUR)
        for p in node.periods
    ]


def at(hour: float) -> float:
    return START + hour * HOUR


STOPPED = shown("stopped", ended_at=at(3))
ENDED = shown("terminated", ended_at=at(5))


@pytest.mark.parametrize(
    ("looks", "periods", "ended"),
    [
        pytest.param([look(1, shown()), look(9, STOPPED)], [(0, 3, 0)], None, id="stopped by a call"),
        pytest.param(
            [look(1, shown()), look(9, shown(started_at=at(8)))], [(0, 1, 7), (8, None, 0)], None, id="unseen stop"
        ),
        pytest.param([look(9, shown(started_at=at(8)))], [(0, 8, 0), (8, None, 0)], None, id="first seen after a stop"),
        pytest.param([look(1, shown()), look(6, ENDED)], [(0, 5, 0)], 5, id="terminated by a call"),
        pytest.param([look(1, shown()), look(4, STOPPED), look(6, ENDED)], [(0, 3, 0)], 5, id="ended while stopped"),
        pytest.param([look(1, shown()), look(3, shown("terminated"))], [(0, 1, 2)], 1, id="EC2 does not say when"),
        pytest.param([look(1, shown()), look(5)], [(0, 1, 4)], 1, id="no longer shown"),
        pytest.param([look(1, shown()), look(2), look(3, shown())], [(0, None, 0)], None, id="not shown for a moment"),
        pytest.param([look(1, shown()), look(6, ENDED), look(7)], [(0, 5, 0)], 5, id="ended, then forgotten by EC2"),
    ],
)
def test_what_is_noted(
    looks: list[Observation], periods: list[tuple[float, float | None, float]], ended: float | None
) -> None:
    (node,) = reduce(note, looks, Ledger()).nodes
    assert hours(node) == periods
    assert node.ended_at == (None if ended is None else at(ended))
    assert node.disk_gib == 100


def test_another_region_does_not_say_that_a_node_is_gone() -> None:
    ledger = note(Ledger(), look(1, shown()))
    other = Observation(at=at(2), region="eu-west-1", exists=False)
    assert note(ledger, other).nodes == ledger.nodes
    assert note(ledger, other).downs == ()


def test_a_cluster_ends_with_its_last_resource() -> None:
    ledger = note(Ledger(), look(1, shown()))
    empty = note(ledger, look(3, shown("terminated", ended_at=at(2))))
    assert empty.downs == ()  # as after `resize 0`
    down = note(empty, look(4, shown("terminated", ended_at=at(2)), exists=False))
    assert down.downs == (at(2),)
    assert note(down, look(5, exists=False)).downs == (at(2),)
    again = note(down, look(7, shown(instance_id="i-1", launched_at=at(6), started_at=at(6))))
    assert again.downs == (at(2),)
    assert note(again, look(9, exists=False)).downs == (at(2), at(7))


def test_a_volume_that_disappears() -> None:
    volume = LedgerVolume(volume_id="vol-1", region="us-east-1", size_gib=8, made_at=START)
    ledger = note(Ledger(), look(1, volumes=(volume,)))
    assert ledger.volumes == (volume,)
    (gone,) = note(ledger, look(3)).volumes
    assert gone.gone_at == at(1)


def test_the_file_of_a_cluster_outlives_its_folder(tmp_path: Any) -> None:
    root = tmp_path / "us-east-1" / "demo"
    assert storage.read(root) == Ledger()
    seen = look(1, shown(), shown("stopped", instance_id="i-1", ended_at=at(1), disk_gib=None))
    ledger = note(Ledger(), seen)
    assert storage.update(root, lambda known: note(known, seen)) == ledger
    assert storage.read(root) == ledger
    assert [path.name for path in root.parent.iterdir() if not path.name.startswith(".")] == ["demo.costs.json"]


def test_when_a_call_ended_an_instance() -> None:
    assert parse_transition("User initiated (2030-03-17 17:46:40 GMT)") == START
    assert parse_transition("User initiated (yesterday)") is None
