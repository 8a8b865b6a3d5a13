"""What `cluster up` plans beside the head, which launches nodes by itself."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.app import App
from cluster.bring_up import bring_up, up_in_a_region
from cluster.config import load_config
from cluster.recovery.on_head import HeadFiles
from foundation.errors import ClusterError, NoCapacityError, NotInRegionError
from foundation.progress import silent
from project import REPOSITORY
from provision.aws.clients import Clients
from provision.plan import Plan, Request
from provision.up import prepare_replacement, prepare_resize, prepare_up, up
from provision_world import World, make_config, make_lease_config


def test_packages_are_resolved_before_the_launch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: App) -> None:
        raise ClusterError("no such package")

    monkeypatch.setattr("cluster.bring_up.check_ahead", refuse)
    app: Any = SimpleNamespace(config=load_config(REPOSITORY / "cluster.toml"))
    plan = prepare_up(world.clients, request=world.request(make_config(nodes=2)), files=world.files)
    with pytest.raises(ClusterError, match="no such package"):
        bring_up(app, lambda _: plan, yes=True)
    assert world.clients.ec2.describe_instances()["Reservations"] == []


def test_a_launch_that_fails_leaves_the_budget(aws_app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has brought its end forward."""
    world.time.now_s, world.lease = time.time(), make_lease_config(budget_usd=10.0)
    before = world.up(make_config()).lease
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n')
    aws_app.__dict__["files"] = world.files
    monkeypatch.setattr("cluster.bring_up.check_ahead", lambda _: None)
    world.sandbox.book.arm("capacity")
    request = world.request(make_config(nodes=4))
    with pytest.raises(NoCapacityError):
        bring_up(aws_app, lambda _: prepare_resize(world.clients, request=request, files=world.files), yes=True)
    after = world.describe().lease
    assert before is not None
    assert after is not None
    assert after.budget_until == pytest.approx(before.budget_until, abs=300)


def test_a_first_launch_that_fails_sets_no_lease(aws_app: App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes are terminated: none are left that spend the budget."""

    def fail(*_: object) -> bool:
        raise ClusterError("the nodes do not run")

    world.lease = make_lease_config(budget_usd=10.0)
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n')
    aws_app.__dict__["files"] = world.files
    monkeypatch.setattr("cluster.bring_up.check_ahead", lambda _: None)
    monkeypatch.setattr("provision.resources.instances.WaitForRunning.apply", fail)
    monkeypatch.setattr("cluster.lease.set_tags", lambda *_: pytest.fail("a lease was set"))
    request = world.request(make_config())
    with pytest.raises(ClusterError, match="do not run"):
        bring_up(aws_app, lambda _: prepare_up(world.clients, request=request, files=world.files), yes=True)


def test_a_region_that_lacks_the_type(aws_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the next one is the first that the user is asked about. A dry run deletes nothing."""
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n[provision]\nregions = ["us-west-2"]\n')
    asked: list[Plan] = []

    def prepare(_clients: Clients, *, request: Request, **_: Any) -> Plan:
        if request.config.region == "us-east-1":
            raise NotInRegionError("no such type")
        return Plan(cluster=request.name, steps=())

    def agree(plan: Plan) -> bool:
        asked.append(plan)
        return False

    def leave(_clients: Clients, *, is_dry: bool, **_: Any) -> None:
        assert is_dry

    monkeypatch.setattr("cluster.bring_up.prepare_up", prepare)
    monkeypatch.setattr("cluster.bring_up.leave_region", leave)
    up_in_a_region(aws_app, dry_run=True, yes=False, keep_failed=False, agree=agree)
    assert len(asked) == 1


def test_up_does_not_launch_what_a_lost_head_has_launched(world: World, tmp_path: Path) -> None:
    world.time.now_s = time.time()  # EC2's launch times are real
    config = make_config(nodes=3)
    nodes = world.up(config).nodes
    world.clients.ec2.terminate_instances(InstanceIds=[nodes[1].instance_id])
    known = world.files.known_instances()
    settings: Any = SimpleNamespace(
        instances=known.instance_ids, launch_key=known.launch_key, public_key=known.public_key
    )
    head = dataclasses.replace(world, files=HeadFiles(tmp_path / "head", settings, key=tmp_path / "key"))
    request = replace(world.request(config), from_head="restrict ssh-ed25519 KEY")
    plan = prepare_replacement(head.clients, request=request, files=head.files, lost={1: nodes[1].instance_id})
    up(plan, clients=head.clients, files=head.files, report=silent)
    [launched] = {node.instance_id for node in head.describe().nodes} - known.instance_ids

    world.time.sleep(3600)  # a stop and a start hours later change nothing
    world.clients.ec2.stop_instances(InstanceIds=[launched])
    world.clients.ec2.start_instances(InstanceIds=[launched])

    assert not prepare_up(world.clients, request=world.request(config), files=world.files)
    assert launched in {node.instance_id for node in world.describe().nodes}
