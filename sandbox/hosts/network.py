"""The sandbox's network: a router in a network namespace of its own, with one link to the machine and one to each host.

It routes as a VPC does: hosts share no wire, every packet between two of them passes the router, and there it is held
against their security groups (firewall.py), where no host can change them. It stands in a namespace of its own and not
in the machine's, for two reasons: neither the machine's forwarding nor its firewall is touched or gets in the way, and
the namespace lives exactly as long as the process that holds it. When that is killed, router and links are gone, the
machine's end of the link too.
"""

import ctypes
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

from foundation.errors import SandboxError

UPLINK = "uplink"
MTU = 9001  # between instances of a VPC (EC2 user guide, "Network maximum transmission unit")
METADATA_ADDRESS = "169.254.169.254"
METADATA_PORT = 80
METADATA_BACKLOG = 512
COMMAND_TIMEOUT_S = 20
CLONE_NEWNET = 0x40000000  # linux/sched.h; os.setns came with Python 3.12

# Before the first link is made, for `default` is what new links begin with. proxy_arp: the router answers for every
# address that is not on the same link. rp_filter: a host can send from its own addresses only,
# EC2's source check. tcp_be_liberal: an offloaded checksum or segment is no reason to lose a connection.
SETTINGS = """\
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/default/proxy_arp
echo 1 >/proc/sys/net/ipv4/conf/default/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/default/send_redirects
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true
echo 1 >/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal 2>/dev/null || true
"""

# The router's answers come at once and not, as by default, at any time within 0.8 s. No namespace has a default for it.
PROMPT = "ip -batch - && echo 0 >/proc/sys/net/ipv4/neigh/{link}/proxy_delay"

# A burst is what one timer tick's worth of bytes needs at the least, and never less than a full segment (tc-tbf(8)).
BURST_S = 0.005
LEAST_BURST_BYTES = 65536 + 1024
LATENCY_MS = 50


class CommandError(Exception):
    """A command of the machine failed; the message says which and what it said."""


def run_quietly(arguments: tuple[str, ...], stdin: str | None = None) -> None:
    """Runs a command of the machine. Raises CommandError."""
    try:
        subprocess.run(arguments, input=stdin, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(arguments)}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(arguments)}: no end within {COMMAND_TIMEOUT_S} s") from error


def link_of(number: int) -> str:
    """The router's interface to a host."""
    return f"h{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A running sandbox network. `holder` is the process that holds the router's namespace."""

    holder: subprocess.Popen[bytes]
    public: IPv4Network

    @property
    def is_up(self) -> bool:
        """Whether the namespace is still held; nothing is reachable any more when it is not."""
        return self.holder.poll() is None

    def plug_in(self, number: int, host_pid: int, mac_address: str, addresses: tuple[str, ...]) -> None:
        """Gives the network namespace of `host_pid` an eth0 that leads to the router, down as yet.

        number: another one for each host that is plugged in. addresses: all that the host is to be reached at.
        """
        link = link_of(number)
        batch = [
            f"link add {link} mtu {MTU} type veth peer name eth0 address {mac_address} mtu {MTU} netns {host_pid}",
            f"link set {link} up",
            *(f"route replace {address}/32 dev {link}" for address in addresses),
        ]
        run_quietly(
            (*_inside(self.holder.pid), "/bin/sh", "-c", PROMPT.format(link=link)),
            "".join(f"{line}\n" for line in batch),
        )

    def move_public_address(self, number: int, host_pid: int, old: str | None, new: str | None) -> None:
        """Takes a public address from a running host and gives it another; None: it has none."""
        inside, outside = [], []
        if old is not None:
            inside.append(f"addr del {old}/32 dev lo")  # its route goes with it
            outside.append(f"route replace blackhole {old}/32")
        if new is not None:
            inside += [f"addr add {new}/32 dev lo", f"route replace {self.public} dev eth0 src {new}"]
            outside.append(f"route replace {new}/32 dev {link_of(number)}")
        for pid, lines in ((host_pid, inside), (self.holder.pid, outside)):
            run_quietly((*_inside(pid), "ip", "-batch", "-"), "".join(f"{line}\n" for line in lines))

    def shape(self, number: int, host_pid: int, mbit: float) -> None:
        """Limits a host's link to so many Mbit/s, in each direction; 0: no limit."""
        for pid, link in ((self.holder.pid, link_of(number)), (host_pid, "eth0")):
            if mbit == 0:
                run_quietly((*_inside(pid), "tc", "qdisc", "replace", "dev", link, "root", "noqueue"))
                continue
            burst = max(LEAST_BURST_BYTES, int(mbit * 1e6 / 8 * BURST_S))
            run_quietly((*_inside(pid), "tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate",
                         f"{int(mbit * 1e6)}bit", "burst", str(burst), "latency", f"{LATENCY_MS}ms"))  # fmt: skip

    def load_firewall(self, ruleset: str) -> None:
        """Puts a whole ruleset (firewall.py) in the place of the one there is, in one step. Raises CommandError."""
        run_quietly((*_inside(self.holder.pid), "nft", "-f", "-"), ruleset)

    def open_metadata_socket(self) -> socket.socket:
        """A listening socket at 169.254.169.254, which the hosts alone can reach."""
        opened: list[socket.socket] = []
        failed: list[OSError] = []

        def listen() -> None:
            try:
                _enter_network_of(self.holder.pid)
                opened.append(socket.create_server((METADATA_ADDRESS, METADATA_PORT), backlog=METADATA_BACKLOG))
            except OSError as error:
                failed.append(error)

        # A thread of its own, which ends: the namespace is a thread's, and a socket stays in the one it was made in.
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return opened[0]


def open_network(mark: str, name: str, gateway: IPv4Interface, public: IPv4Network) -> Network:
    """Makes the router and the machine's link to it, with the routes to the private and the public range.

    mark: on the holder's command line. name: of the machine's end of the link.
    Call it from the main thread: the holder dies with the thread that started it.
    """
    holder = subprocess.Popen(
        # The shell waits for the end of its input, which is the daemon's end.
        ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--",
         "/bin/sh", "-c", "echo; read -r _", mark),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/",
    )  # fmt: skip
    assert holder.stdout is not None  # noqa: S101 -- tells mypy what PIPE means
    holder.stdout.readline()
    run_quietly((*_inside(holder.pid), "/bin/sh", "-e"), SETTINGS)
    run_quietly(
        ("ip", "-batch", "-"),
        f"link add {name} mtu {MTU} type veth peer name {UPLINK} mtu {MTU} netns {holder.pid}\n"
        f"addr add {gateway} brd + dev {name}\n"
        f"link set {name} up\n"
        f"route add {public} dev {name} src {gateway.ip}\n",
    )
    # What is for a host that is not there is lost without an answer, as on EC2.
    run_quietly(
        (*_inside(holder.pid), "/bin/sh", "-c", PROMPT.format(link=UPLINK)),
        "link set lo up\n"
        f"link set {UPLINK} up\n"
        f"addr add {METADATA_ADDRESS}/32 dev lo\n"
        f"route add {gateway.ip}/32 dev {UPLINK}\n"
        f"route add blackhole {gateway.network}\n"
        f"route add blackhole {public}\n",
    )
    return Network(holder=holder, public=public)


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", "--net", "--target", str(pid), "--")


def _enter_network_of(pid: int) -> None:
    """Moves the calling thread, and it alone, into a process's network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(namespace, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}")
    finally:
        os.close(namespace)


# --- which addresses a sandbox may have: ranges that are not in use on this machine and never on the Internet

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
