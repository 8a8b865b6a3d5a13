"""The ledger of costs that commands keep, and the prices of a job's nodes; the clusters of all regions."""

import shutil
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from cluster.app import App
from cluster.commands.adopt import adopt
from cluster.commands.status import list_
from cluster.costs import find_node_prices, find_spending, note_costs, noting_costs
from cluster.lease import count_budget
from cluster.nodes.deletion import delete_cluster
from cluster.nodes.ec2 import nodes_of
from cluster.session import describe, find_request
from cluster.status import describe_bills, describe_status
from foundation.errors import AwsError, ClusterError, ConfigError, CredentialsError
from foundation.progress import Event
from provision.allow import prepare_allow
from provision.cost import storage
from provision.describe import describe_clusters
from provision.model import bake_name
from provision.power import prepare_start
from provision.up import prepare_resize, prepare_up
from provision_world import World, make_config, make_lease_config


@pytest.fixture
def app(aws_app: App) -> App:
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n[provision]\nssh_from = "203.0.113.7/32"\n')
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
    nodes = nodes_of(app, world.describe())
    prices = {nodes.state.nodes[0].instance_id: 0.17}
    assert find_node_prices(app, nodes) == prices  # by asking AWS, as on a machine that did not launch the node
    world.calls.made.clear()
    assert find_node_prices(app, nodes) == prices
    assert world.calls.made == []  # the ledger has recorded it


def test_a_budget_includes_nodes_that_have_ended(app: App, world: World) -> None:
    """Otherwise the new nodes would end as soon as `up` has counted again."""
    world.up(make_config(nodes=1))
    note_costs(app)
    world.resize(make_config(nodes=0))
    app.override("lease.budget_usd", 0.001)
    with pytest.raises(ConfigError, match=r"the cluster has already cost \$0\.0"):
        prepare_up(world.clients, request=find_request(app), files=world.files)


def test_a_budget_with_an_unknown_price_is_a_warning(app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`resize` does not end nodes that run, and must not say nothing while they spend the budget sooner."""
    events: list[Event] = []
    monkeypatch.setattr(app, "report", events.append)
    world.lease = make_lease_config(budget_usd=200.0)
    world.up(make_config(nodes=1))
    note_costs(app)
    monkeypatch.setattr("provision.cost.observe.describe_prices", lambda *_: {})
    state = world.resize(make_config(nodes=2))
    note_costs(app)
    assert count_budget(app, state, now=world.time.time()) == state.lease
    assert [event.what for event in events if "the budget of $200 may be exceeded" in event.what]


def test_the_costs_of_all_regions_are_shown(app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a cluster of another region is deleted, no region has it, and the first one is asked."""
    world.up(make_config(nodes=1))
    note_costs(app)
    monkeypatch.setattr("cluster.status.note_costs", lambda _: None)
    app.override("provision.region", "us-west-2")
    app.override("provision.regions", ["us-east-1"])
    assert len(describe_bills(app, now=world.time.time())) == 1


def test_a_region_that_does_not_answer(app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster list` shows the others, whether or not one of them has this cluster."""

    def describe_or_refuse(ec2: Any, **known: Any) -> Any:
        if ec2 is None:
            raise AwsError("AWS says: no")
        return describe_clusters(ec2, **known)

    elsewhere = SimpleNamespace(session=world.clients.session, ec2=None)
    monkeypatch.setattr("cluster.status.make_clients", {"us-east-1": world.clients, "eu-west-3": elsewhere}.__getitem__)
    monkeypatch.setattr("provision.aws.clients.make_clients", lambda _: world.clients)
    monkeypatch.setattr("cluster.status.describe_clusters", describe_or_refuse)
    app.override("provision.regions", ["eu-west-3"])
    for listed in ("no clusters in us-east-1", "demo  1 running"):
        done = CliRunner().invoke(list_, obj=app)
        assert listed in done.stdout
        assert str(done.exception) == "eu-west-3 is not listed: AWS says: no"
        world.up(make_config(nodes=1))


def test_down_deletes_what_is_in_the_regions_that_answer(
    app: App, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AwsError("AWS says: no")

    monkeypatch.setattr(App, "find_cloud", lambda _: True)
    monkeypatch.setattr("provision.regions._ask", refuse)
    monkeypatch.setattr("cluster.nodes.deletion.make_clients", lambda _: world.clients)
    app.override("provision.regions", ["eu-west-3"])
    app.__dict__["files"] = world.files
    world.up(make_config(nodes=1))
    world.resize(make_config(nodes=0))
    with pytest.raises(AwsError, match="something may be left in eu-west-3: AWS says: no"):
        delete_cluster(app, yes=True, as_json=False)
    assert not world.resources()


def test_a_cluster_of_another_account(app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of AWS_PROFILE, `down` would forget the key of nodes that run on, and say that they are gone."""
    monkeypatch.setattr(App, "find_cloud", lambda _: True)
    monkeypatch.setattr("cluster.nodes.deletion.make_clients", lambda _: world.clients)
    world.up(make_config(nodes=1))
    ledger = note_costs(app)
    world.sandbox.reset()  # as in an account without the cluster
    commands = (
        lambda: delete_cluster(app, yes=True, as_json=False),
        lambda: describe(app),
        lambda: describe_status(app),
        lambda: prepare_up(world.clients, request=find_request(app), files=app.files),
        lambda: prepare_resize(world.clients, request=find_request(app), files=app.files),
        lambda: prepare_start(world.clients, name="demo", config=app.config.provision, files=app.files),
        lambda: prepare_allow(world.clients, name="demo", config=app.config.provision, files=app.files),
    )
    for name, of_it in ((bake_name("demo"), commands[:1]), ("demo", commands)):  # the first by `image bake`
        files = app.files_in("us-east-1", name=name)
        files.note_launch(app.project_dir, account="999999999999")
        files.make_key()
        for command in of_it:
            with pytest.raises(CredentialsError, match="launched in account 999999999999; these"):
                command()
        assert files.find_public_key() is not None
    assert note_costs(app) is None
    assert storage.read(app.files.root) == ledger


def test_an_adopted_cluster_has_its_account_noted(app: App, world: World) -> None:
    world.up(make_config(nodes=1))
    app.files.root.mkdir(parents=True)
    shutil.copy(world.files.private_key, app.files.private_key)
    assert CliRunner().invoke(adopt, ["--yes"], obj=app).exit_code == 0
    with pytest.raises(CredentialsError, match="launched in account 123456789012; these"):
        app.files.check_account(lambda: "999999999999")


def test_a_cluster_that_another_machine_has_deleted_is_another_cluster(app: App, world: World) -> None:
    """Otherwise a budget would include what it has cost."""
    world.up(make_config(nodes=1))
    note_costs(app)
    world.down()
    prepare_up(world.clients, request=find_request(app), files=world.files)
    assert len(storage.read(app.files.root).downs) == 1


def test_nodes_that_ended_before_this_machine_looked(app: App, world: World) -> None:
    """A launch that failed counts, with its disk. A cluster that another machine has deleted does not."""
    for _ in range(2):
        node = world.up(make_config(nodes=1)).nodes[0]
        world.down()
    app.files.note_instances([node.instance_id])  # such as one that did not boot
    world.up(make_config(nodes=1))
    ledger = note_costs(app)
    assert ledger is not None
    assert sorted((one.runs, one.disk_gib) for one in ledger.nodes) == [(False, 100), (True, 100)]
    assert find_spending(app).usd_per_hour == pytest.approx(0.17 + 0.005 + 100 * 0.08 / 730, rel=0.01)
