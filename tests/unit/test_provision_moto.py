"""`up` and `down` against an EC2 in this process: complete, repeatable, killed at every point."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from moto.ec2.models import amis
from moto.ec2.models.instances import InstanceBackend
from provision_world import MOTO_IMAGE, NAME, Calls, FakeTime, Killed, World, complete, counting_fsync, make_config

import provision.instances
import provision.launch
import provision.settle
import provision.wait
from provision.aws import make_clients
from provision.describe import find_leftovers
from provision.errors import ClusterError
from provision.files import ClusterFiles
from provision.lifecycle import prepare_down, prepare_up, up
from provision.plan import RunInstances
from provision.progress import Event, silent
from provision.receipt import render_receipt


@pytest.fixture(scope="module")
def ec2() -> Iterator[World]:
    """Clients take a second to make: one set for the module, and an empty EC2 for each test."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        # An empty EC2 has this image only: moto makes volumes for each of its own hundreds, at each reset.
        patch.setenv("MOTO_AMIS_PATH", "see the next line")
        patch.setattr(amis, "AMIS", [image for image in amis.AMIS if image["ami_id"] == MOTO_IMAGE])
        clock = FakeTime()
        for module in (provision.wait, provision.settle, provision.launch, provision.instances):
            patch.setattr(module, "time", clock)
        calls = Calls()
        patch.setattr(os, "fsync", counting_fsync(calls, os.fsync))
        clients = make_clients("us-east-1")
        calls.watch(clients)
        yield World(clients=clients, files=ClusterFiles(Path("/nonexistent")), calls=calls, time=clock)


@pytest.fixture
def world(ec2: World, tmp_path: Path) -> World:
    ec2.reset(tmp_path / "cluster")
    return ec2


def test_up_makes_a_whole_cluster(world: World) -> None:
    state = world.up(make_config(nodes=3))

    assert [(node.name, node.role, node.state) for node in state.nodes] == [
        ("node-0", "head", "running"),
        ("node-1", "worker", "running"),
        ("node-2", "worker", "running"),
    ]
    assert all(node.public_ip and node.private_ip for node in state.nodes)
    assert world.resources() == complete(3)
    group = state.security_group
    assert group is not None
    assert (group.ssh_from, group.ssh_open_to, group.open_to_members) == (
        ("203.0.113.7/32",),
        ("203.0.113.7/32",),
        True,
    )


def test_what_ec2_is_told_about_security(world: World) -> None:
    world.up(make_config())

    ec2 = world.clients.ec2
    [reservation] = ec2.describe_instances()["Reservations"]
    for instance in reservation["Instances"]:
        options = instance["MetadataOptions"]
        assert (options["HttpTokens"], options["HttpEndpoint"], options["HttpPutResponseHopLimit"]) == (
            "required",
            "enabled",
            1,
        )
        assert instance["KeyName"] == "cluster-demo"
        assert instance["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
    tagged = [volume for volume in ec2.describe_volumes()["Volumes"] if volume.get("Tags")]
    assert [(volume["Encrypted"], volume["VolumeType"], volume["Size"]) for volume in tagged] == [
        (True, "gp3", 100)
    ] * 2
    [group] = ec2.describe_security_groups(GroupNames=["cluster-demo"])["SecurityGroups"]
    opened = {
        (rule["IpProtocol"], rule.get("FromPort"), network["CidrIp"])
        for rule in group["IpPermissions"]
        for network in rule["IpRanges"]
    }
    assert opened == {("tcp", 22, "203.0.113.7/32")}


def test_a_second_up_has_nothing_to_do(world: World) -> None:
    world.up(make_config())
    world.calls.made.clear()

    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)
    up(plan, clients=world.clients, files=world.files, report=silent)

    assert not plan
    assert not world.calls.mutating()


def test_down_leaves_nothing_and_says_so(world: World) -> None:
    world.up(make_config())

    receipt = world.down()

    assert not world.resources()
    assert receipt.leftovers == ()
    assert sorted(resource.kind for resource in receipt.deleted) == [
        "instance",
        "instance",
        "key pair",
        "local files",
        "security group",
    ]
    assert "cluster demo is gone" in render_receipt(receipt)
    assert not world.files.root.exists()


def test_a_second_down_finds_nothing(world: World) -> None:
    world.up(make_config())
    world.down()
    world.calls.made.clear()

    assert not prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    assert render_receipt(world.down()) == "cluster demo: nothing is there\n"
    assert not world.calls.mutating()


def test_down_works_from_a_machine_that_has_none_of_the_files(world: World, tmp_path: Path) -> None:
    world.up(make_config())
    world.files = ClusterFiles(tmp_path / "another machine")

    assert world.down().leftovers == ()
    assert not world.resources()


@pytest.mark.parametrize("nodes", [1, 2, 32, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_number_of_calls_does_not_grow_with_the_nodes(world: World, nodes: int) -> None:
    world.up(make_config(nodes=nodes))
    assert len(world.describe().nodes) == nodes
    world.down()

    assert world.calls.mutating() == {
        "ImportKeyPair": 1,
        "CreateSecurityGroup": 1,
        "AuthorizeSecurityGroupIngress": 1,
        "RunInstances": 1,
        "TerminateInstances": 1,
        "DeleteSecurityGroup": 1,
        "DeleteKeyPair": 1,
    }


def test_a_node_that_was_lost_comes_back_with_its_index(world: World) -> None:
    before = world.up(make_config(nodes=4))
    lost = [before.nodes[0].instance_id, before.nodes[2].instance_id]
    world.clients.ec2.terminate_instances(InstanceIds=lost)

    after = world.up(make_config(nodes=4))

    assert [node.index for node in after.nodes] == [0, 1, 2, 3]
    assert after.nodes[1] == before.nodes[1]
    assert after.nodes[3] == before.nodes[3]
    assert not {node.instance_id for node in after.nodes} & set(lost)


def test_up_again_after_the_callers_address_changed(world: World) -> None:
    world.up(make_config())
    world.clients.ec2.authorize_security_group_ingress(
        GroupName="cluster-demo", IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="192.0.2.0/24"
    )

    group = world.up(make_config(ssh_from="198.51.100.1")).security_group

    assert group is not None
    assert group.ssh_from == ("198.51.100.1/32",)
    assert group.ssh_open_to == ("192.0.2.0/24", "198.51.100.1/32")  # the rule made by hand stays


def test_what_somebody_else_made_is_never_touched(world: World) -> None:
    world.clients.ec2.create_key_pair(KeyName="cluster-demo")
    world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="mine")

    with pytest.raises(ClusterError, match="did not make"):
        world.up(make_config())
    assert not prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    assert world.resources() == {"keys": 1, "groups": 1}


def test_a_name_taken_between_plan_and_apply_is_refused(world: World) -> None:
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)
    world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="mine")

    with pytest.raises(ClusterError, match="security group cluster-demo"):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert "RunInstances" not in world.calls.made


def test_an_old_plan_does_not_double_the_cluster(world: World) -> None:
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)
    world.up(make_config())
    events: list[Event] = []

    up(plan, clients=world.clients, files=world.files, report=events.append)

    assert world.resources() == complete(2)
    assert {event.kind for event in events if event.what.startswith(("make", "launch"))} == {"start", "same"}


def test_one_command_at_a_time(world: World) -> None:
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)

    with world.files.locked(), pytest.raises(ClusterError, match=f"process {os.getpid()}"):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert not world.resources()


def test_a_node_that_ends_while_starting_is_named_with_its_reason(world: World) -> None:
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)

    def end_one(event: Event) -> None:
        if event.kind == "done" and event.what.startswith("launch"):
            world.clients.ec2.terminate_instances(InstanceIds=[world.describe().nodes[1].instance_id])

    with pytest.raises(ClusterError, match=r"1 of the nodes ended while starting: i-\w+: Client.UserInitiated"):
        up(plan, clients=world.clients, files=world.files, report=end_one)
    assert [node.index for node in world.up(make_config()).nodes] == [0, 1]


# --- killed at every point -------------------------------------------------------------------------------------


def count_points(world: World, act: str) -> int:
    world.calls.points = 0
    if act == "up":
        world.up(make_config())
    else:
        world.down()
    return world.calls.points


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_up_killed_at_every_point_and_run_again(world: World, tmp_path: Path, *, before: bool) -> None:
    points = count_points(world, "up")
    assert points > 15
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.up(make_config())

        state = world.up(make_config())

        assert [node.index for node in state.nodes] == [0, 1], point
        assert world.resources() == complete(2), point
        assert not prepare_up(world.clients, name=NAME, config=make_config(), files=world.files), point
        assert world.down().leftovers == (), point
        assert not world.resources(), point


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_up_killed_at_every_point_then_down(world: World, tmp_path: Path, *, before: bool) -> None:
    points = count_points(world, "up")
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.up(make_config())

        assert world.down().leftovers == (), point
        assert not world.resources(), point
        assert not world.files.root.exists(), point


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_down_killed_at_every_point_and_run_again(world: World, tmp_path: Path, *, before: bool) -> None:
    world.up(make_config())
    points = count_points(world, "down")
    assert points > 10
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        world.up(make_config())
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.down()

        assert world.down().leftovers == (), point
        assert not world.resources(), point
        assert not world.files.root.exists(), point


@pytest.fixture
def late_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An EC2 as it is: tokens count, and lists show new instances only some looks later (moto does neither)."""
    run = InstanceBackend.run_instances
    by_token: dict[str, Any] = {}

    def run_once(self: InstanceBackend, *args: Any, client_token: str, **kwargs: Any) -> Any:
        if client_token not in by_token:
            by_token[client_token] = run(self, *args, client_token=client_token, **kwargs)
            blind["looks"] = 4
        return by_token[client_token]

    blind = {"looks": 0}

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        if blind["looks"]:
            blind["looks"] -= 1
            parsed["Reservations"] = []

    monkeypatch.setattr(InstanceBackend, "run_instances", run_once)
    world.clients.ec2.meta.events.register("after-call.ec2.DescribeInstances", hide)
    yield world
    world.clients.ec2.meta.events.unregister("after-call.ec2.DescribeInstances", hide)


def kill_after_launch(world: World) -> None:
    """`up`, killed when its launch has taken effect and nobody was told."""
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)
    with pytest.raises(Killed):
        up(plan, clients=world.clients, files=world.files, report=kill_on_done_launch)


def kill_on_done_launch(event: Event) -> None:
    if event.kind == "done" and event.what.startswith("launch"):
        raise Killed(event.what)


def test_a_launch_that_ec2_does_not_list_yet_is_not_repeated(late_lists: World) -> None:
    kill_after_launch(late_lists)

    state = late_lists.up(make_config())

    assert [node.index for node in state.nodes] == [0, 1]
    assert late_lists.resources() == complete(2)
    assert late_lists.files.launches() == ()


def test_down_waits_for_a_launch_that_ec2_does_not_list_yet(late_lists: World) -> None:
    kill_after_launch(late_lists)

    late_lists.down()

    assert not late_lists.resources()


def test_up_with_other_settings_waits_for_the_interrupted_launch(late_lists: World) -> None:
    kill_after_launch(late_lists)

    with pytest.raises(ClusterError, match="appeared after the launch"):
        late_lists.up(make_config(nodes=3))
    assert [node.index for node in late_lists.up(make_config(nodes=3)).nodes] == [0, 1, 2]


def test_a_token_does_not_bring_back_nodes_that_ended(late_lists: World) -> None:
    kill_after_launch(late_lists)
    ec2 = late_lists.clients.ec2
    ids = [i["InstanceId"] for r in describe_all(late_lists) for i in r["Instances"]]
    ec2.terminate_instances(InstanceIds=ids)

    with pytest.raises(ClusterError, match="ended while starting"):
        late_lists.up(make_config())

    assert not set(ids) & {node.instance_id for node in late_lists.up(make_config()).nodes}


def describe_all(world: World) -> list[Any]:
    """Past the blind looks."""
    while not (reservations := world.clients.ec2.describe_instances()["Reservations"]):
        pass
    return list(reservations)


# --- any order of events -----------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(st.just("up"), st.integers(1, 4)),
    st.tuples(st.just("down"), st.just(0)),
    st.tuples(st.just("killed up"), st.integers(0, 25)),
    st.tuples(st.just("killed down"), st.integers(0, 15)),
    st.tuples(st.just("lose a node"), st.integers(0, 3)),
    st.tuples(st.just("lose the files"), st.just(0)),
    st.tuples(st.just("lose the key pair"), st.just(0)),
)


def carry_out(world: World, action: str, number: int) -> None:
    match action:
        case "up":
            state = world.up(make_config(nodes=number))
            assert [node.index for node in state.nodes] == list(range(number))
            assert world.resources() == complete(number)
            assert not prepare_up(world.clients, name=NAME, config=make_config(nodes=number), files=world.files)
        case "down":
            assert world.down().leftovers == ()
            assert not world.resources()
        case "killed up" | "killed down":
            with world.killed_at(number, before=number % 2 == 0):
                world.up(make_config()) if action == "killed up" else world.down()
        case "lose a node":
            nodes = world.describe().nodes
            if number < len(nodes):
                world.clients.ec2.terminate_instances(InstanceIds=[nodes[number].instance_id])
        case "lose the files":
            shutil.rmtree(world.files.root, ignore_errors=True)
        case "lose the key pair":
            world.clients.ec2.delete_key_pair(KeyName="cluster-demo")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(actions=st.lists(ACTIONS, max_size=6))
def test_any_order_of_events_ends_clean(world: World, tmp_path: Path, actions: list[tuple[str, int]]) -> None:
    shutil.rmtree(tmp_path / "any", ignore_errors=True)
    world.reset(tmp_path / "any")
    for action, number in actions:
        try:
            carry_out(world, action, number)
        except Killed:
            pass
        except ClusterError as error:
            # Refusals that are right: too many nodes for what is asked, or nodes whose key is lost.
            if not any(words in error.message for words in ("asked for", "only its private key")):
                raise
    assert world.down().leftovers == ()
    assert not world.resources()
    assert find_leftovers(world.clients.ec2, name=NAME) == ()


def test_the_launch_step_says_which_nodes(world: World) -> None:
    plan = prepare_up(world.clients, name=NAME, config=make_config(nodes=3), files=world.files)

    [launch] = [step for step in plan.steps if isinstance(step, RunInstances)]
    assert launch.indices == (0, 1, 2)
