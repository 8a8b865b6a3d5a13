from ipaddress import IPv4Network

import pytest

from provision.errors import SandboxError
from sandbox.addressing import PRIVATE_POOLS, PUBLIC_POOLS, choose_ranges, describe_taken, mac_address_of


def networks(*texts: str) -> list[IPv4Network]:
    return [IPv4Network(text) for text in texts]


def test_same_seed_same_ranges() -> None:
    assert choose_ranges([], seed=7) == choose_ranges([], seed=7)
    assert choose_ranges([], seed=7) != choose_ranges([], seed=8)


@pytest.mark.parametrize("seed", [0, 1, 253, 254, 255, 0xFFFFFFFF])
def test_ranges_are_never_of_the_internet(seed: int) -> None:
    ranges = choose_ranges([], seed=seed)
    assert any(ranges.private.subnet_of(pool) for pool in PRIVATE_POOLS)
    assert any(ranges.public.subnet_of(pool) for pool in PUBLIC_POOLS)
    assert ranges.private.prefixlen == 16
    assert ranges.gateway.ip == ranges.private[1]


def test_what_is_taken_is_left_alone() -> None:
    first = choose_ranges([], seed=3)
    second = choose_ranges([first.private, first.public], seed=3)
    assert not second.private.overlaps(first.private)
    assert not second.public.overlaps(first.public)


def test_an_address_within_a_range_takes_it() -> None:
    first = choose_ranges([], seed=3)
    one_address = IPv4Network(f"{first.private[77]}/32")
    assert choose_ranges([one_address], seed=3).private != first.private


def test_a_vpn_over_all_of_ten_leaves_the_second_pool() -> None:
    ranges = choose_ranges(networks("10.0.0.0/8", "172.17.0.0/16"), seed=0)
    assert ranges.private.subnet_of(PRIVATE_POOLS[1])
    assert ranges.private != IPv4Network("172.17.0.0/16")


def test_nothing_left_is_said() -> None:
    with pytest.raises(SandboxError, match=r"free /16 of 10\.0\.0\.0/8 and 172\.16\.0\.0/12") as caught:
        choose_ranges(networks("10.0.0.0/8", "172.16.0.0/12"), seed=0)
    assert caught.value.hint == "ip -4 route"


def test_this_machines_loopback_is_taken() -> None:
    taken = describe_taken()
    assert IPv4Network("127.0.0.0/8") in taken
    assert all(network.prefixlen >= 8 for network in taken)


def test_mac_address_follows_the_private_address() -> None:
    assert mac_address_of("10.1.2.255") == "06:00:0a:01:02:ff"
