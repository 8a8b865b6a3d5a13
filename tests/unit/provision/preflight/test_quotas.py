from typing import Any

import pytest

from provision.model import LaunchOption, Market, Quota
from provision.preflight.quotas import describe_quotas, find_quota_kind, quota_error
from provision_world import World, make_config, make_option

STANDARD, GRAPHICS, P = "L-1216C47A", "L-DB2E81BA", "L-417A185B"
SPOT_STANDARD, SPOT_GRAPHICS, SPOT_P, SPOT_P5 = "L-34B43A08", "L-3819A6DF", "L-7212CCBC", "L-C4BD4855"


@pytest.mark.parametrize(
    ("instance_type", "on_demand", "spot"),
    [
        ("c5.xlarge", STANDARD, SPOT_STANDARD),
        ("g5.xlarge", GRAPHICS, SPOT_GRAPHICS),
        ("gr6.4xlarge", GRAPHICS, SPOT_GRAPHICS),
        ("p3dn.24xlarge", P, SPOT_P),
        ("p5en.48xlarge", P, SPOT_P5),
        ("p6-b200.48xlarge", P, None),
        ("inf2.xlarge", None, None),
    ],
)
def test_the_quota_of_a_type(instance_type: str, on_demand: str | None, spot: str | None) -> None:
    def code(market: Market) -> str | None:
        kind = find_quota_kind(instance_type, market)
        return kind.code if kind else None

    assert (code("on-demand"), code("spot")) == (on_demand, spot)


def quotas(world: World, *options: LaunchOption, launching: int = 2) -> dict[tuple[Market, str], Quota]:
    return dict(describe_quotas(world.clients, options or (make_option(),), launching=launching))


def test_need_use_and_limit(world: World) -> None:
    """Stopped and ended instances do not count, nor those of another market or kind."""
    world.sandbox.reset(quotas={STANDARD: 40})
    state = world.up(make_config(nodes=3))
    world.clients.ec2.stop_instances(InstanceIds=[state.nodes[1].instance_id])
    world.clients.ec2.terminate_instances(InstanceIds=[state.nodes[2].instance_id])
    options = (
        make_option(instance_type="m5.large", vcpus=2),
        make_option(market="spot"),
        make_option(instance_type="g5.xlarge"),
    )
    found = quotas(world, *options, launching=5)
    first = found["on-demand", "m5.large"]
    assert first.name == "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
    assert (first.code, first.needed, first.limit) == (STANDARD, 10, 40.0)
    assert [quota.in_use for quota in found.values()] == [4, 0, 0]


def test_a_limit_that_may_not_be_read(world: World) -> None:
    world.sandbox.book.arm("unauthorized service=servicequotas")
    quota = quotas(world)["on-demand", "c5.xlarge"]
    assert (quota.limit, quota.in_use, quota.unknown) == (None, 0, "Service Quotas says AccessDeniedException")
    assert quota.suffices


def quota(**values: Any) -> Quota:
    given: dict[str, Any] = {"code": "L-1", "name": "Some", "region": "eu-west-1", "needed": 8, "limit": 4.0}
    return Quota(**{"in_use": 2, **given, **values})


def test_the_error_has_each_quota_once_with_its_command() -> None:
    """With the least that is sufficient, for the region."""
    found = [quota(), quota(code="L-2", name="Other", needed=16), quota(), quota(needed=64)]
    error = quota_error(found, nodes=4)
    assert error.message.splitlines() == [
        "the account's quotas do not allow 4 nodes:",
        "  L-1 Some: 8 vCPUs needed, 2 in use, limit 4",
        "  L-2 Other: 16 vCPUs needed, 2 in use, limit 4",
    ]
    assert str(error.hint).count("aws service-quotas request-service-quota-increase") == 2
    assert "--quota-code L-2 --desired-value 18 --region eu-west-1" in str(error.hint)
