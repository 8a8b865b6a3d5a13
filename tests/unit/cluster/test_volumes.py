import pytest

from cluster.app import App
from cluster.session import unmount_before
from foundation.progress import Event
from provision_world import World, make_config


def test_a_node_without_an_address_does_not_keep_down_from_deleting(
    aws_app: App, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh_address has changed since the launch, or EC2 has not assigned the address yet."""
    aws_app.config_path.write_text('name = "demo"\ncloud = "aws"\n[[volumes]]\nmount = "/shared"\nsource = "head"\n')
    world.up(make_config(nodes=1, ssh_address="private"))
    node = world.describe().nodes[0]
    aws_app.files.note_instances([node.instance_id])
    events: list[Event] = []
    monkeypatch.setattr(aws_app, "report", events.append)
    unmount_before(aws_app)
    assert [event.what for event in events] == [
        f"volumes were not unmounted: node-0 ({node.instance_id}) has no public address"
    ]
