"""How a cluster differs from cluster.toml."""

from typing import Any

import pytest

from provision.config import ProvisionConfig
from provision.model import Node
from provision.status import find_differences
from provision_world import make_node


def nodes(*types: str) -> list[Node]:
    return [make_node(index, instance_type=each, subnet_id="subnet-00000001") for index, each in enumerate(types)]


@pytest.mark.parametrize(
    ("keys", "there", "messages"),
    [
        ({}, ("c5.xlarge",) * 2, []),
        ({"nodes": 4}, ("c5.xlarge",) * 2, ["nodes = 4, and the cluster has 2 (cluster up"]),
        ({"nodes": 4, "min_nodes": 2}, ("c5.xlarge",) * 2, []),
        (
            {"nodes": 1},
            ("c5.xlarge",) * 2,
            ["nodes = 1, and the cluster has 2 (cluster resize 1 terminates the others)"],
        ),
        (
            {"subnet_id": "subnet-00000002"},
            ("c5.xlarge",) * 2,
            ['subnet_id = "subnet-00000002", and the cluster has nodes in subnet-00000001 (cluster down'],
        ),
        ({"instance_types": ("c5.2xlarge",)}, ("c5.2xlarge",) * 2, []),
        (
            {"instance_type": "g5.xlarge", "nodes": 1},
            ("c5.xlarge", "g5.xlarge"),
            ["nodes = 1, and", 'instance_type = "g5.xlarge", and the cluster has 1 c5.xlarge (cluster down'],
        ),
    ],
)
def test_warns_of_differences(keys: dict[str, Any], there: tuple[str, ...], messages: list[str]) -> None:
    found = list(find_differences(ProvisionConfig(**keys), nodes(*there)))
    assert len(found) == len(messages)
    assert all(words in line for words, line in zip(messages, found, strict=True))
