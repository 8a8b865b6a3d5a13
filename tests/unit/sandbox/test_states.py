import re
from datetime import UTC, datetime
from typing import Any

from provision_world import World, make_config
from states_bill import read_states


def describe(world: World) -> list[dict[str, Any]]:
    found = world.clients.ec2.describe_instances()["Reservations"]
    return [dict(instance) for reservation in found for instance in reservation["Instances"]]


def test_each_state_is_logged_once(world: World) -> None:
    first = len(read_states(world.sandbox.state_log))
    world.up(make_config(nodes=1))
    (instance,) = world.sandbox.backend.sandbox_instances()
    ec2, ids = world.clients.ec2, [instance.id]
    ec2.stop_instances(InstanceIds=ids)
    describe(world)
    ec2.start_instances(InstanceIds=ids)
    describe(world)
    ec2.terminate_instances(InstanceIds=ids)
    describe(world)
    states = ["pending", "running", "stopping", "stopped", "pending", "running", "shutting-down", "terminated"]
    entries = read_states(world.sandbox.state_log)[first:]
    assert [(entry["instance"], entry["state"]) for entry in entries] == [(instance.id, state) for state in states]
    assert entries[-1]["reason"] == "Client.UserInitiatedShutdown"
    running = entries[1]
    assert (running["type"], running["market"], running["zone"]) == ("c5.xlarge", "on-demand", "us-east-1a")
    assert (running["public_address"], running["disks_gib"]) == (True, [100])
    assert abs(datetime.fromisoformat(running["time"]).timestamp() - datetime.now(UTC).timestamp()) < 600


def test_ec2_says_when_a_call_ended_an_instance(world: World) -> None:
    world.up(make_config(nodes=1))
    ids = [instance.id for instance in world.sandbox.backend.sandbox_instances()]
    world.clients.ec2.stop_instances(InstanceIds=ids)
    reasons = {describe(world)[0]["StateTransitionReason"] for _ in range(3)}
    world.clients.ec2.terminate_instances(InstanceIds=ids)
    reasons |= {describe(world)[0]["StateTransitionReason"] for _ in range(3)}
    assert all(re.fullmatch(r"User initiated \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d GMT\)", reason) for reason in reasons)
