"""An instance type that is newer than this program's tables, in each command that reads the type."""

import pytest
from click.testing import CliRunner

from cluster.app import App
from cluster.commands.oracle import oracle
from cluster.commands.status import cost, list_, status
from cluster.commands.up import up
from ec2_sandbox.api.prices import ON_DEMAND
from foundation.errors import NotFoundError
from provision.oracle import tables
from provision_world import World, listening, make_config

NEW = "g6f.large"


def test_a_type_newer_than_the_tables(world: World, aws_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS has no price for it, and EC2 says nothing about its GPU but its name."""

    def forget(parsed: dict[str, list[dict[str, object]]], **_: object) -> None:
        for info in parsed["InstanceTypes"]:
            info["GpuInfo"] = {"Gpus": [{"Name": "Q100"}]}

    monkeypatch.delitem(tables._BY_FAMILY, "g6f")
    assert NEW not in ON_DEMAND
    monkeypatch.setattr("cluster.status.make_clients", lambda _: world.clients)
    image = world.sandbox.backend.describe_images()[0].id
    settings = {"instance_type": NEW, "ami": image, "ssh_from": "203.0.113.7/32"}
    written = "\n".join(f'{key} = "{value}"' for key, value in settings.items())
    aws_app.config_path.write_text(f'name = "demo"\ncloud = "aws"\n[provision]\n{written}\n')

    def run(command: object, *args: str) -> str:
        done = CliRunner().invoke(command, args, obj=aws_app, catch_exceptions=False)  # type: ignore[arg-type]
        assert done.exit_code == 0
        return done.output

    with listening(world.clients.ec2, "after-call.ec2.DescribeInstanceTypes", forget):
        output = run(up, "--dry-run")
        world.up(make_config(**settings))
    assert f"warning: instance_type {NEW} is not in the table of GPUs: MXNet may not run there" in output
    assert f"2 x {NEW}: 2 vCPUs, 1x unknown Q100, x86_64" in output
    assert "unknown per hour" in output
    for command in (status, list_, cost):
        assert NEW in run(command)
        assert NEW in run(command, "--json")
    for framework in ("mxnet", "pytorch"):
        with pytest.raises(NotFoundError, match=f"{NEW} is not in the table"):
            run(oracle, NEW, "--framework", framework)
