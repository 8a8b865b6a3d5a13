"""The sandbox's addresses, and security groups as nftables rules. test_security_groups.py tests them on real hosts."""

import re
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any

import pytest
from moto.ec2.models.security_groups import SecurityGroupRule

from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts.firewall import EVERYBODY, render_ruleset
from ec2_sandbox.paths import PRIVATE_POOLS, PUBLIC_POOLS, choose_ranges, find_name_servers


@pytest.mark.parametrize("seed", [0, 255, 0xFFFFFFFF])
def test_ranges_are_never_internet_addresses(seed: int) -> None:
    ranges = choose_ranges([], seed=seed)
    assert any(ranges.private.subnet_of(pool) for pool in PRIVATE_POOLS)
    assert any(ranges.public.subnet_of(pool) for pool in PUBLIC_POOLS)
    assert ranges.private.prefixlen == 16
    assert ranges.gateway.ip == ranges.private[1]


def test_taken_ranges_are_not_used() -> None:
    first = choose_ranges([], seed=3)
    second = choose_ranges([first.private, first.public], seed=3)
    assert not second.private.overlaps(first.private)
    assert not second.public.overlaps(first.public)


def test_no_free_range_is_an_error() -> None:
    with pytest.raises(SandboxError, match=r"free /16 of 10\.0\.0\.0/8 and 172\.16\.0\.0/12") as caught:
        choose_ranges([IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12")], seed=0)
    assert caught.value.hint == "ip -4 route"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nameserver 10.255.255.53\n", ["10.255.255.53"]),
        ("# nameserver 10.0.0.1\nsearch example.com\nnameserver\t10.0.0.2 \nnameserver fd00::1\n", ["10.0.0.2"]),
        ("options timeout:1\nnameserver\n", []),
        ("", []),
    ],
)
def test_name_servers_in_resolv_conf(text: str, found: list[str]) -> None:
    assert find_name_servers(text) == found


def render_chain(protocol: str, peer: str, low: int = -1, high: int = -1) -> list[str]:
    """What the chain of a group contains that has one rule. peer: a network, or a security group."""
    of_group = {"GroupId": peer} if peer.startswith("sg-") else None
    network = {"CidrIp": peer} if of_group is None else None
    rule = SecurityGroupRule(None, protocol, "sg-1", str(low), str(high), network, of_group)
    group: Any = SimpleNamespace(id="sg-1", ingress_rules=[rule], egress_rules=[])
    ruleset = render_ruleset([group], {}, members={}, prefix_lists={})
    found = re.search(r"^  chain sg_1_in \{\n(.*?)^  \}", ruleset, re.MULTILINE | re.DOTALL)
    assert found, ruleset
    return [line.strip() for line in found.group(1).splitlines()]


@pytest.mark.parametrize(
    ("rule", "rendered"),
    [
        (("-1", EVERYBODY), "accept"),
        (("-1", "sg-1"), "ip saddr @sg_1 accept"),
        (("tcp", EVERYBODY, 22, 22), "tcp dport 22 accept"),
        (("tcp", EVERYBODY, 0, 65535), "ip protocol 6 accept"),
        (("tcp", "10.0.0.0/8"), "ip saddr 10.0.0.0/8 ip protocol 6 accept"),
        (("icmp", EVERYBODY, 8), "icmp type 8 accept"),
        (("icmp", EVERYBODY, 3, 4), "icmp type 3 icmp code 4 accept"),
    ],
)
def test_a_rule(rule: tuple[Any, ...], rendered: str) -> None:
    assert render_chain(*rule) == [rendered]


@pytest.mark.parametrize("rule", [("-1", "sg-gone"), ("nonsense", EVERYBODY), ("tcp", EVERYBODY, 9, 1)])
def test_invalid_rules_allow_nothing(rule: tuple[Any, ...]) -> None:
    assert render_chain(*rule) == []
