"""The ledger of costs that commands keep, and the prices of a job's nodes."""

import pytest

from cluster.app import App
from cluster.costs import find_node_prices, note_costs, noting_costs
from cluster.nodes.ec2 import Ec2Nodes
from foundation.errors import ClusterError
from foundation.progress import Event
from provision.cost import storage
from provision_world import World, make_config


@pytest.fixture
def app(aws_app: App) -> App:
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
    return aws_app


def test_a_ledger_that_cannot_be_written_stops_nothing(app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    monkeypatch.setattr(app, "report", events.append)
    world.up(make_config(nodes=1))
    path = storage.ledger_path(app.files.root)
    path.parent.mkdir(parents=True)
    path.write_text("rubbish")
    assert note_costs(app) is None
    with noting_costs(app):
        pass
    warnings = [event.what for event in events if event.kind == "warn"]
    assert len(warnings) == 2
    assert all(f"the costs were not recorded: {path} is damaged" in warning for warning in warnings)
    assert path.read_text() == "rubbish"  # its content may still be useful


def test_the_costs_are_noted_after_a_failure_too(app: App, world: World) -> None:
    def fail() -> None:
        with noting_costs(app):
            world.up(make_config(nodes=1))
            raise ClusterError("no")

    with pytest.raises(ClusterError, match="no"):
        fail()
    assert len(storage.read(app.files.root).nodes) == 1


def test_the_prices_of_a_jobs_nodes(app: App, world: World) -> None:
    world.up(make_config(nodes=1))
    nodes = Ec2Nodes(world.describe(), app.config.provision)
    prices = {nodes.state.nodes[0].instance_id: 0.17}
    assert find_node_prices(app, nodes) == prices  # by asking AWS, as on a machine that did not launch the node
    world.calls.made.clear()
    assert find_node_prices(app, nodes) == prices
    assert world.calls.made == []  # the ledger has recorded it
