"""[provision] of cluster.toml: what is taken, what is refused, and with which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from provision.config import NAME_PATTERN, ProvisionConfig, setting_error


def test_every_field_has_a_default_and_a_description() -> None:
    assert ProvisionConfig().nodes == 2
    assert all((field.description or "").endswith(".") for field in ProvisionConfig.model_fields.values())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("region", "eu-central-1"),
        ("region", "us-gov-west-1"),
        ("nodes", 0),
        ("nodes", 1000),
        ("instance_type", "g4dn.xlarge"),
        ("instance_type", "u-6tb1.112xlarge"),
        ("instance_type", "c7g.metal"),
        ("ami", "auto"),
        ("ami", "ami-0123456789abcdef0"),
        ("user", "ec2-user"),
        ("volume_size_gib", 8),
        ("ssh_from", "auto"),
        ("ssh_from", "203.0.113.0/24"),
        ("subnet_id", "subnet-0123456789abcdef0"),
        ("ssh_address", "public"),
    ],
)
def test_taken(key: str, value: Any) -> None:
    assert getattr(ProvisionConfig(**{key: value}), key) == value


def test_a_single_address_becomes_a_network() -> None:
    assert ProvisionConfig(ssh_from="203.0.113.7").ssh_from == "203.0.113.7/32"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("region", "Frankfurt", "is allowed: an AWS region"),
        ("region", "us-east-1\n", "is allowed: an AWS region"),
        ("nodes", -1, "greater than or equal to 0"),
        ("nodes", 1001, "less than or equal to 1000"),
        ("nodes", "2", "valid integer"),
        ("nodes", True, "valid integer"),
        ("nodes", 2.0, "valid integer"),
        ("instance_type", "c5", "is allowed: an EC2 instance type"),
        ("instance_type", "c5.xlarge; rm -rf /", "is allowed: an EC2 instance type"),
        ("ami", "ubuntu", 'is allowed: "auto" or an image id'),
        ("ami", "ami-$(id)", 'is allowed: "auto" or an image id'),
        ("user", "root; id", "is allowed: a Linux user name"),
        ("user", "../x", "is allowed: a Linux user name"),
        ("user", "", "is allowed: a Linux user name"),
        ("volume_size_gib", 7, "greater than or equal to 8"),
        ("volume_size_gib", 16385, "less than or equal to 16384"),
        ("ssh_from", "0.0.0.0/0", "in effect to everybody"),
        ("ssh_from", "10.0.0.0/7", "no wider than /8"),
        ("ssh_from", "203.0.113.7/24", "did you mean 203.0.113.0/24"),
        ("ssh_from", "203.0.113.300", "is allowed"),
        ("ssh_from", "2001:db8::/32", "is allowed"),
        ("ssh_from", "my-office", "is allowed"),
        ("subnet_id", "vpc-0123456789", "is allowed"),
        ("ssh_address", "elastic", "'public' or 'private'"),
        ("node", 3, "Extra inputs are not permitted"),
    ],
)
def test_refused_with_what_is_allowed(key: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ProvisionConfig(**{key: value})
    [error] = caught.value.errors()
    assert error["loc"] == (key,)
    assert words in error["msg"]


def test_private_addresses_need_a_network() -> None:
    with pytest.raises(ValidationError, match="needs ssh_from to say a network"):
        ProvisionConfig(ssh_address="private")
    assert ProvisionConfig(ssh_address="private", ssh_from="10.0.0.0/16").ssh_from == "10.0.0.0/16"


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ProvisionConfig().nodes = 3


@pytest.mark.parametrize("name", ["a", "demo", "my-cluster-2", "a" * 32])
def test_names_taken(name: str) -> None:
    assert NAME_PATTERN.fullmatch(name)


@pytest.mark.parametrize("name", ["", "Demo", "2x", "-x", "a" * 33, "a b", "a/b", "../x", "a\n", "a'b", "$(id)", "ä"])
def test_names_refused(name: str) -> None:
    assert not NAME_PATTERN.fullmatch(name)


def test_a_setting_that_aws_cannot_meet_is_shown_as_in_the_file() -> None:
    error = setting_error(ProvisionConfig(), "volume_size_gib", "too small", hint="more")
    assert error.message == "[provision] volume_size_gib = 100: too small"
    assert error.exit_code == 2
