"""The text of the plan's first half."""

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from provision.model import ClusterState, LaunchOption, Permissions, Preflight, Quota
from provision.render import render_preflight
from provision_world import NAME, make_config, make_node, make_option, make_wanted

NOW = datetime(2030, 1, 13, 12, tzinfo=UTC)
GPU: dict[str, Any] = {
    "instance_type": "g5.xlarge",
    "gpus": "1x NVIDIA A10G",
    "image_id": "ami-0aaaaaaaaaaaaaaaa",
    "image_name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20300101",
    "image_created_at": datetime(2030, 1, 1, tzinfo=UTC),
    "placement": True,
}
SPOT = {**GPU, "market": "spot"}
QUOTA = Quota(
    code="L-3819A6DF", name="All G and VT Spot Instance Requests", region="us-east-1", needed=16, limit=64.0, in_use=8
)


def render(
    *options: LaunchOption, nodes: int = 4, launching: int = 4, ssh_address: str = "public", **values: Any
) -> list[str]:
    preflight = Preflight(options=options or (make_option(usd_per_hour=0.17),), **values)
    state = ClusterState(name=NAME, nodes=tuple(make_node(index) for index in range(nodes - launching)))
    return render_preflight(
        make_wanted(config=make_config(nodes=nodes, ssh_address=ssh_address), state=state), preflight, now=NOW
    )


def topics(lines: list[str]) -> dict[str, str]:
    """The text after each label, on one line."""
    found: dict[str, str] = {}
    label = ""
    for line in lines:
        label = line[:13].strip() or label
        found[label] = f"{found.get(label, '')} {line[13:]}".strip()
    return found


def test_the_whole() -> None:
    lines = render(
        make_option(**SPOT, usd_per_hour=0.4),
        make_option(**SPOT, zone="us-east-1b", usd_per_hour=0.41),
        make_option(**SPOT, zone="us-east-1c", usd_per_hour=0.42),
        make_option(**GPU, usd_per_hour=1.006),
        make_option(**GPU, zone="us-east-1b", usd_per_hour=1.006),
        skipped=("g5.xlarge is not offered in us-east-1e", "us-east-1d: subnet-4 has no route"),
        quotas=(
            QUOTA,
            replace(
                QUOTA,
                code="L-DB2E81BA",
                name="Running On-Demand G and VT instances",
                limit=None,
                in_use=0,
                unknown="Service Quotas says AccessDeniedException",
            ),
        ),
        permissions=Permissions(allowed=tuple(f"ec2:{number}" for number in range(11))),
        volume_usd_per_gib_month=0.08,
    )
    assert lines == [
        "account      123456789012, arn:aws:iam::123456789012:user/ada",
        "region       us-east-1",
        "image        ami-0aaaaaaaaaaaaaaaa Deep Learning Base OSS Nvidia Driver GPU",
        "             AMI (Ubuntu 22.04) 20300101, 12 days old",
        "nodes        4 x g5.xlarge: 4 vCPUs, 1x NVIDIA A10G, x86_64",
        "market       spot: AWS may end the nodes at two minutes' notice",
        "where        us-east-1a, subnet-1 with 4091 free addresses; then us-east-1b,",
        "             us-east-1c",
        "or           g5.xlarge on demand in us-east-1a, us-east-1b: 4 vCPUs, 1x NVIDIA",
        "             A10G, x86_64; $4.024 per hour (4 x $1.006)",
        "placement    close together, in a cluster placement group",
        "quota        L-3819A6DF All G and VT Spot Instance Requests: 16 vCPUs needed,",
        "             8 in use, limit 64",
        "             L-DB2E81BA Running On-Demand G and VT instances: 16 vCPUs needed,",
        "             0 in use, limit unknown (Service Quotas says",
        "             AccessDeniedException)",
        "permissions  11 checked, all there",
        "lease        none: only cluster down ends the nodes",
        "ssh from     203.0.113.7/32",
        "disks        4 disks of 100 GiB, gp3, encrypted",
        "price        $1.60 per hour (4 x $0.40) on spot; disks $32.00 per month;",
        "             addresses $0.02 per hour; in all $1.6638 per hour",
        "not tried    g5.xlarge is not offered in us-east-1e",
        "             us-east-1d: subnet-4 has no route",
    ]


def test_the_price_is_for_the_whole_cluster() -> None:
    small, large = make_option(usd_per_hour=0.0052), make_option(usd_per_hour=1234.5)
    assert topics(render(small))["price"].startswith("$0.0208 per hour (4 x $0.0052)")
    assert topics(render(large))["price"].startswith("$4,938.00 per hour (4 x $1,234.50)")
    found = topics(render(nodes=4, launching=1, volume_usd_per_gib_month=0.08))
    assert found["price"].startswith("$0.68 per hour (4 x $0.17) on demand; disks $32.00 per month")
    assert found["nodes"] == "1 x c5.xlarge: 4 vCPUs, no GPU, x86_64; 3 of 4 are there already"
    assert found["disks"] == "4 disks of 100 GiB, gp3, encrypted"


def test_what_is_only_there_when_asked_for() -> None:
    plain = topics(render())
    assert not {"efa", "not tried"} & set(plain)
    assert plain["placement"] == "wherever there is room"
    found = topics(render(make_option(efa=True), ssh_address="private"))
    assert found["efa"] == "an Elastic Fabric Adapter for each node"
    assert found["ssh from"] == "203.0.113.7/32, to private addresses only"
