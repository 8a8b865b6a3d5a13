"""Which addresses a sandbox may have: ranges that are not in use on this machine and never on the Internet."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

from provision.errors import SandboxError

# RFC 1918; EC2 takes a VPC of at most a /16. 10/8 first, for 172.17/16 and on are where Docker settles.
PRIVATE_POOLS = (IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"))
PRIVATE_PREFIX = 16
# RFC 2544: for benchmarks between networks; never routed on the Internet.
PUBLIC_POOLS = (IPv4Network("198.18.0.0/15"),)
PUBLIC_PREFIX = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """A sandbox's addresses: those of its VPC and those that stand for EC2's public ones."""

    private: IPv4Network
    public: IPv4Network

    @property
    def gateway(self) -> IPv4Interface:
        """The machine's own address in the VPC: the first, which EC2 keeps for the router, too."""
        return IPv4Interface(f"{self.private[1]}/{self.private.prefixlen}")


def choose_ranges(taken: Iterable[IPv4Network], seed: int) -> Ranges:
    """Free ranges, the same ones for the same seed as long as nothing else takes them.

    taken: what the machine's routes and addresses already cover.
    Raises SandboxError when nothing is left.
    """
    occupied = tuple(taken)
    return Ranges(
        private=_choose(PRIVATE_POOLS, PRIVATE_PREFIX, occupied, seed),
        public=_choose(PUBLIC_POOLS, PUBLIC_PREFIX, occupied, seed),
    )


def _choose(pools: tuple[IPv4Network, ...], prefix: int, occupied: tuple[IPv4Network, ...], seed: int) -> IPv4Network:
    for pool in pools:
        for candidate in _rotated(pool, prefix, seed):
            if not any(candidate.overlaps(other) for other in occupied):
                return candidate
    names = " and ".join(str(pool) for pool in pools)
    raise SandboxError(
        f"The sandbox needs a free /{prefix} of {names}, but this machine's routes cover them all.",
        hint="ip -4 route",
    )


def _rotated(pool: IPv4Network, prefix: int, seed: int) -> Iterator[IPv4Network]:
    # The first one is left out: 10.0.0.0/16 is what everybody else takes.
    count = (1 << (prefix - pool.prefixlen)) - 1
    size = 1 << (32 - prefix)
    base = int(pool.network_address)
    for step in range(count):
        yield IPv4Network((base + (1 + (seed + step) % count) * size, prefix))


def describe_taken() -> tuple[IPv4Network, ...]:
    """The ranges that this machine's addresses and routes cover.

    Default routes are none of them, nor what VPN clients split them into (0.0.0.0/1 and 128.0.0.0/1): the sandbox's
    own routes are more specific.
    """
    routes = [route["dst"] for route in _ip_json("route", "show", "table", "all") if route["dst"] != "default"]
    addresses = [
        f"{address['local']}/{address['prefixlen']}"
        for link in _ip_json("addr", "show")
        for address in link.get("addr_info", [])
    ]
    found = [IPv4Network(text, strict=False) for text in (*routes, *addresses)]
    return tuple(network for network in found if network.prefixlen >= 8)


def _ip_json(*words: str) -> list[dict[str, Any]]:
    output = subprocess.run(("ip", "-json", "-4", *words), check=True, capture_output=True, text=True).stdout
    found: list[dict[str, Any]] = json.loads(output or "[]")
    return found


def mac_address_of(private_ip: str) -> str:
    """The hardware address that goes with a private address: the same for each instance that has it in its turn.

    With another one, whoever had spoken with the address before would send to the old one for most of a minute.
    """
    return "06:00:" + ":".join(f"{int(part):02x}" for part in private_ip.split("."))
