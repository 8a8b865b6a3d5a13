from typing import Any

import pytest

from provision.config import ProvisionConfig
from provision.status import find_differences
from provision_world import make_node

TWO = ("c5.xlarge", "c5.xlarge")


@pytest.mark.parametrize(
    ("keys", "there", "messages"),
    [
        ({}, TWO, []),
        ({"nodes": 4}, TWO, ["nodes = 4, and the cluster has 2 (cluster up"]),
        ({"nodes": 4, "min_nodes": 2}, TWO, []),
        ({"nodes": 1}, TWO, ["nodes = 1, and the cluster has 2 (cluster resize 1 terminates the others)"]),
        ({"instance_types": ("c5.2xlarge",)}, ("c5.2xlarge",) * 2, []),
        (
            {"instance_type": "g5.xlarge", "nodes": 1},
            ("c5.xlarge", "g5.xlarge"),
            ["nodes = 1, and", 'instance_type = "g5.xlarge", and the cluster has 1 c5.xlarge (cluster down'],
        ),
    ],
)
def test_warns_of_differences(keys: dict[str, Any], there: tuple[str, ...], messages: list[str]) -> None:
    nodes = [make_node(index, instance_type=each) for index, each in enumerate(there)]
    found = list(find_differences(ProvisionConfig(**keys), nodes))
    assert len(found) == len(messages)
    assert all(words in line for words, line in zip(messages, found, strict=True))
