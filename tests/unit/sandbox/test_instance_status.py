from typing import Any

from provision_world import World, make_config


def statuses(world: World, **asked: Any) -> list[tuple[str, str, str]]:
    found = world.clients.ec2.describe_instance_status(**asked)["InstanceStatuses"]
    return [(one["InstanceState"]["Name"], one["SystemStatus"]["Status"], one["InstanceStatus"]["Status"])
            for one in found]  # fmt: skip


def test_status_of_every_instance(world: World) -> None:
    ids = [node.instance_id for node in world.up(make_config(nodes=2)).nodes]
    assert statuses(world) == [("running", "ok", "ok")] * 2
    ec2 = world.clients.ec2
    ec2.stop_instances(InstanceIds=ids[:1])
    assert [state for state, _, _ in statuses(world, IncludeAllInstances=True)] == ["stopped", "running"]
    assert statuses(world, InstanceIds=ids[:1]) == []
    stopped = statuses(world, InstanceIds=ids[:1], IncludeAllInstances=True)
    assert stopped == [("stopped", "not-applicable", "not-applicable")]
    [one] = ec2.describe_instance_status()["InstanceStatuses"]
    assert (one["InstanceId"], one["InstanceStatus"]["Details"][0]["Status"]) == (ids[1], "passed")


def test_states_take_at_least_the_delays_that_are_set(world: World) -> None:
    world.sandbox.reset(boot_delay_s=60)
    world.launch()
    assert statuses(world) == []
    assert statuses(world, IncludeAllInstances=True) == [("pending", "initializing", "initializing")]
    world.sandbox.reset(end_delay_s=60)
    world.clients.ec2.terminate_instances(InstanceIds=[world.launch()])
    assert statuses(world, IncludeAllInstances=True) == [("shutting-down", "not-applicable", "not-applicable")]
