"""Lost nodes are replaced one for one: nothing else changes, and a killed run is completed by the next one."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.progress import silent
from provision.model import ClusterState, Node
from provision.plan import Plan
from provision.up import prepare_replacement, up
from provision_world import Killed, World, complete, make_config, plan_kills, run_side_by_side

SPOT = ["spot", "on-demand"]


def prepare(world: World, *lost: Node, needed: Collection[int] = (), nodes: int = 3) -> Plan:
    request = world.request(make_config(nodes=nodes, market=SPOT))
    by_index = {node.index: node.instance_id for node in lost}
    return prepare_replacement(world.clients, request=request, files=world.files, lost=by_index, needed=needed)


def replace_nodes(world: World, *lost: Node, needed: Collection[int] = (), nodes: int = 3) -> ClusterState:
    plan = prepare(world, *lost, needed=needed, nodes=nodes)
    return up(plan, clients=world.clients, files=world.files, report=silent)


def end(world: World, node: Node) -> None:
    world.clients.ec2.terminate_instances(InstanceIds=[node.instance_id])


@pytest.mark.parametrize(("index", "has_ended"), [(0, True), (1, False)])
def test_only_the_lost_node_is_replaced(world: World, index: int, *, has_ended: bool) -> None:
    before = world.up(make_config(nodes=3, market=SPOT))
    lost = before.nodes[index]
    if has_ended:
        end(world, lost)
    world.calls.made.clear()
    after = replace_nodes(world, lost, nodes=1 if has_ended else 3)  # the cluster keeps its size
    assert [node.index for node in after.nodes] == [0, 1, 2]
    assert after.nodes[index].instance_id != lost.instance_id
    assert after.nodes[index].role == lost.role
    assert [after.nodes[other] for other in range(3) if other != index] == [
        before.nodes[other] for other in range(3) if other != index
    ]
    ended = {} if has_ended else {"TerminateInstances": 1}
    assert world.calls.mutating() == {"RunInstances": 1, **ended}
    assert not prepare(world, lost)


def stop(world: World, node: Node) -> None:
    """A scheduled retirement, and a failure of the hardware, stop a node instead of terminating it."""
    world.clients.ec2.stop_instances(InstanceIds=[node.instance_id])


def test_a_stopped_or_ended_node_of_the_job_counts_as_lost(world: World) -> None:
    """But not the head: its disk may have what the user keeps there."""
    before = world.up(make_config(nodes=3))
    end(world, before.nodes[1])
    stop(world, before.nodes[0])
    with pytest.raises(ClusterError, match=r"node-0 .* is stopped") as refused:
        prepare(world, before.nodes[1], needed=(0, 1))
    assert "cluster start" in str(refused.value.hint)
    world.clients.ec2.start_instances(InstanceIds=[before.nodes[0].instance_id])
    world.settled()
    stop(world, before.nodes[2])
    after = replace_nodes(world, before.nodes[1], needed=(0, 1, 2))
    assert [node.state for node in after.nodes] == ["running"] * 3
    assert after.nodes[0].instance_id == before.nodes[0].instance_id
    assert not {node.instance_id for node in after.nodes[1:]} & {node.instance_id for node in before.nodes}
    assert world.resources()["instances"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_killed_at_every_point(world: World, tmp_path: Path, index: int) -> None:
    def begin() -> tuple[Node, ...]:
        return world.up(make_config(market=SPOT)).nodes

    nodes = begin()
    world.calls.made.clear()
    replace_nodes(world, nodes[index], nodes=2)
    points = list(world.calls.made)
    assert len(points) > 6
    world.reset(tmp_path / "before")
    nodes = begin()
    lost, other = nodes[index], nodes[1 - index]

    def kill(case: tuple[int, bool]) -> None:
        point, before = case
        world.move_files(tmp_path / f"{point}-{before}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            replace_nodes(world, lost, nodes=2)
        after = replace_nodes(world, lost, nodes=2)
        assert [node.index for node in after.nodes] == [0, 1]
        assert after.nodes[1 - index] == other
        assert after.nodes[index].instance_id != lost.instance_id
        assert world.resources() == complete(2) + Counter({"open spot requests": 2})
        assert not prepare(world, lost, nodes=2)
        assert world.down().leftovers == ()
        assert not world.resources()

    run_side_by_side(kill, plan_kills(points))
