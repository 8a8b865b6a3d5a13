from typing import Any

from provision_world import World


def statuses(world: World, **asked: Any) -> list[tuple[str, str, str]]:
    found = world.clients.ec2.describe_instance_status(**asked)["InstanceStatuses"]
    return [(one["InstanceState"]["Name"], one["SystemStatus"]["Status"], one["InstanceStatus"]["Status"])
            for one in found]  # fmt: skip


def test_states_take_at_least_the_delays_that_are_set(world: World) -> None:
    world.sandbox.reset(boot_delay_s=60)
    world.launch()
    assert statuses(world) == []
    assert statuses(world, IncludeAllInstances=True) == [("pending", "initializing", "initializing")]
    world.sandbox.reset(end_delay_s=60)
    world.clients.ec2.terminate_instances(InstanceIds=[world.launch()])
    assert statuses(world, IncludeAllInstances=True) == [("shutting-down", "not-applicable", "not-applicable")]
