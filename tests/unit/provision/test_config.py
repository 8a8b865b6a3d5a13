import json
from typing import Any

import pytest

from foundation.errors import ConfigError
from foundation.settings import check
from provision.config import NAME_PATTERN, ProvisionConfig


def make(**table: Any) -> ProvisionConfig:
    return check(ProvisionConfig, table, source="cluster.toml")


def test_short_forms() -> None:
    assert make(ssh_from="203.0.113.7").ssh_from == "203.0.113.7/32"
    assert make(market="spot").market == ("spot",)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("region", "us-east1", 'must be an AWS region such as "us-east-1"'),
        ("instance_type", "c5", "must be an EC2 instance type"),
        ("ssh_from", "10.0.0.0/7", "no wider than /8"),
        ("ssh_from", "203.0.113.7/24", "or an IPv4 network"),
        ("ssh_from", "2001:db8::/32", "or an IPv4 network"),
        ("market", "spotty", 'must be "on-demand" or "spot"'),
        ("min_nodes", "some", 'must be "all" or a whole number from 1 to 1000'),
    ],
)
def test_rejects_and_says_what_is_allowed(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**{key: value})
    [line] = caught.value.message.splitlines()
    assert line.startswith(f"cluster.toml: {key} = {json.dumps(value)}: ")
    assert words in line


def test_tags_that_up_sets_itself_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"tags\.\"cluster:name\": must be a key of letters"):
        make(tags={"cluster:name": "other"})
    with pytest.raises(ConfigError, match=r"tags\.CostCenter = 4711: must be at most 256 letters"):
        make(tags={"CostCenter": 4711})
    assert make(tags={"CostCenter": "ML group"}).tags == {"CostCenter": "ML group"}


def test_private_addresses_need_a_network() -> None:
    with pytest.raises(ConfigError, match="needs a network in ssh_from"):
        make(ssh_address="private")
    assert make(ssh_address="private", ssh_from="10.0.0.0/16").ssh_from == "10.0.0.0/16"


def test_min_nodes_is_at_most_nodes() -> None:
    with pytest.raises(ConfigError, match=r"min_nodes = 7 is greater than nodes = 1"):
        make(min_nodes=7, nodes=1)
    assert make(min_nodes=7, nodes=7).min_nodes == 7


def test_names() -> None:
    assert all(map(NAME_PATTERN.fullmatch, ["a", "my-cluster-2", "a" * 32]))
    assert not any(map(NAME_PATTERN.fullmatch, ["", "Demo", "a" * 33, "a/b", "a\n", "a'b", "$(id)", "ä"]))
