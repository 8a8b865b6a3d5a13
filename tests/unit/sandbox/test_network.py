"""The sandbox's addresses, and security groups as nftables rules. test_security_groups.py tests them on real hosts."""

import re
from ipaddress import IPv4Network

import pytest

from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts.network import Cuts, Group, Rule, render_ruleset
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


EVERYBODY = IPv4Network("0.0.0.0/0")


def chain_of(ruleset: str, name: str) -> list[str]:
    found = re.search(rf"^  chain {name} \{{\n(.*?)^  \}}", ruleset, re.MULTILINE | re.DOTALL)
    assert found, f"{name} is not in\n{ruleset}"
    return [line.strip() for line in found.group(1).splitlines()]


def group_with(*ingress: Rule, members: tuple[str, ...] = ()) -> Group:
    return Group(id="sg-1", ingress=ingress, egress=(), members=members)


@pytest.mark.parametrize(
    ("rule", "rendered"),
    [
        (Rule(protocol="-1", peer=EVERYBODY), "accept"),
        (Rule(protocol="-1", peer="sg-1"), "ip saddr @sg_1 accept"),
        (Rule(protocol="tcp", peer=EVERYBODY, from_port=22, to_port=22), "tcp dport 22 accept"),
        (Rule(protocol="tcp", peer=EVERYBODY, from_port=0, to_port=65535), "ip protocol 6 accept"),
        (Rule(protocol="tcp", peer=IPv4Network("10.0.0.0/8")), "ip saddr 10.0.0.0/8 ip protocol 6 accept"),
        (Rule(protocol="icmp", peer=EVERYBODY, from_port=8), "icmp type 8 accept"),
        (Rule(protocol="icmp", peer=EVERYBODY, from_port=3, to_port=4), "icmp type 3 icmp code 4 accept"),
    ],
)
def test_a_rule(rule: Rule, rendered: str) -> None:
    assert chain_of(render_ruleset([group_with(rule)], [], Cuts()), "sg_1_in") == [rendered]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(protocol="-1", peer="sg-gone"),
        Rule(protocol="nonsense", peer=EVERYBODY),
        Rule(protocol="tcp", peer=EVERYBODY, from_port=9, to_port=1),
    ],
)
def test_invalid_rules_allow_nothing(rule: Rule) -> None:
    assert chain_of(render_ruleset([group_with(rule)], [], Cuts()), "sg_1_in") == []
