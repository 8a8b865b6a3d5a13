"""The sandbox's network: a router in its own network namespace, with one link to the machine and one to each host.

As in a VPC, every packet between two hosts passes through the router, which checks it against their security groups.
Hosts cannot change the router. Because the router has its own namespace, it does not change the machine's forwarding
and firewall, and they do not affect the router. The namespace ends with the process that holds it, and so do the router
and all links.
"""

import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import TypeVar

from ec2_sandbox.hosts.namespaces import CLONE_NEWNET, check, libc

T = TypeVar("T")

UPLINK = "uplink"
MTU = 9001  # between instances of a VPC (EC2 user guide, "Network maximum transmission unit")
METADATA_ADDRESS = "169.254.169.254"
NAME_SERVER_ADDRESS = "169.254.169.253"
COMMAND_TIMEOUT_S = 20

# Applied before the first link, because new links inherit `default`. proxy_arp: the router answers for every address
# that is not on the same link. rp_filter: a host can send only from its own addresses (EC2's source check).
# tcp_be_liberal: offloaded checksums and segments do not break connections. icmp_ratemask: every packet to the outside
# is rejected with an ICMP message, without a rate limit.
SETTINGS = """\
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv4/icmp_ratemask
echo 1 >/proc/sys/net/ipv4/conf/default/proxy_arp
echo 1 >/proc/sys/net/ipv4/conf/default/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/default/send_redirects
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true
echo 1 >/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal 2>/dev/null || true
"""

# The router answers ARP immediately. The kernel's default delay is up to 0.8 s, and it can only be set for each link.
PROMPT = "ip -batch - && echo 0 >/proc/sys/net/ipv4/neigh/{link}/proxy_delay"

# A burst must hold the bytes of one timer tick, and at least a full segment (tc-tbf(8)).
BURST_S = 0.005
LEAST_BURST_BYTES = 65536 + 1024
LATENCY_MS = 50


class CommandError(Exception):
    """A command failed. The message contains the command and its error output."""


def run_quietly(arguments: tuple[str, ...], stdin: str | None = None) -> str:
    """Runs a command, and returns its output. Raises CommandError."""
    try:
        return subprocess.run(
            arguments, input=stdin, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        ).stdout
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(arguments)}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(arguments)}: still running after {COMMAND_TIMEOUT_S} s") from error


def name_server_of(vpc: IPv4Network) -> str:
    """Returns the address of the name server in a VPC (VPC user guide, "Amazon DNS server")."""
    return str(vpc[2])


def link_of(number: int) -> str:
    """Returns the name of the router's interface to a host."""
    return f"h{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A running sandbox network. name: the machine's interface. holder: the process with the router's namespace."""

    name: str
    holder: subprocess.Popen[bytes]

    def plug_in(self, number: int, host_pid: int, mac_address: str, addresses: tuple[str, ...]) -> None:
        """Connects the network namespace of `host_pid` to the router. Its eth0 is not yet up.

        number: unique for each host. addresses: all addresses of the host.
        """
        link = link_of(number)
        batch = [
            f"link add {link} mtu {MTU} type veth peer name eth0 address {mac_address} mtu {MTU} netns {host_pid}",
            f"link set {link} up",
            *(f"route replace {address}/32 dev {link}" for address in addresses),
        ]
        _run_inside(self.holder.pid, "/bin/sh", "-c", PROMPT.format(link=link), lines=batch)
        # Whoever has asked for an address while no host had it would be told "No route to host" for up to 3 s more.
        forget = "".join(f"neigh flush to {address} dev {self.name}\n" for address in addresses)
        run_quietly(("ip", "-batch", "-"), forget)

    def shape(self, number: int, host_pid: int, mbit: float) -> None:
        """Limits a host's link to `mbit` Mbit/s in each direction; 0 means no limit. Raises CommandError."""
        queue = ["noqueue"]
        if mbit:
            burst = max(LEAST_BURST_BYTES, int(mbit * 1e6 / 8 * BURST_S))
            queue = ["tbf", "rate", f"{int(mbit * 1e6)}bit", "burst", str(burst), "latency", f"{LATENCY_MS}ms"]
        for pid, link in ((self.holder.pid, link_of(number)), (host_pid, "eth0")):
            _run_inside(pid, "tc", "qdisc", "replace", "dev", link, "root", *queue)

    def load_firewall(self, ruleset: str) -> None:
        """Replaces the whole ruleset (`render_ruleset`) atomically. Raises CommandError."""
        _run_inside(self.holder.pid, "nft", "-f", "-", lines=ruleset.splitlines())

    def call_inside(self, function: Callable[[], T]) -> T:
        """Calls a function in the router's namespace and returns its result. Only hosts can reach its sockets.

        The function runs in a separate thread, because each thread can have its own namespace.
        """

        def call() -> T:
            with Path(f"/proc/{self.holder.pid}/ns/net").open("rb") as namespace:
                check(libc.setns(namespace.fileno(), CLONE_NEWNET), "setns")  # this thread alone
            return function()

        with ThreadPoolExecutor(1, thread_name_prefix="inside") as thread:
            return thread.submit(call).result()


def open_network(mark: str, name: str, gateway: IPv4Interface, public: IPv4Network) -> Network:
    """Creates the router and the machine's link to it, with routes to the private and the public range.

    mark: an argument for the holder's command line. name: the machine's interface.
    Call it in the main thread, because the holder ends with the thread that started it.
    """
    holder = subprocess.Popen(
        # The shell waits for the end of its input, which comes when the daemon ends.
        ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--",
         "/bin/sh", "-c", "echo; read -r _", mark),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/",
    )  # fmt: skip
    assert holder.stdout is not None  # noqa: S101 -- PIPE sets it, which mypy does not know
    holder.stdout.readline()
    _run_inside(holder.pid, "/bin/sh", "-e", lines=SETTINGS.splitlines())
    run_quietly(
        ("ip", "-batch", "-"),
        f"link add {name} mtu {MTU} type veth peer name {UPLINK} mtu {MTU} netns {holder.pid}\n"
        f"addr add {gateway} brd + dev {name}\n"
        f"link set {name} up\n"
        f"route add {public} dev {name} src {gateway.ip}\n",
    )
    # The router drops packets to an address that no host has, as EC2 does. Packets to the outside would go to lo, but
    # the firewall rejects them (render_ruleset).
    own = (name_server_of(gateway.network), NAME_SERVER_ADDRESS, METADATA_ADDRESS)
    setup = (
        "link set lo up",
        f"link set {UPLINK} up",
        *(f"addr add {address}/32 dev lo" for address in own),
        "route add default dev lo",
        f"route add {gateway.ip}/32 dev {UPLINK}",
        f"route add blackhole {gateway.network}",
        f"route add blackhole {public}",
    )
    _run_inside(holder.pid, "/bin/sh", "-c", PROMPT.format(link=UPLINK), lines=setup)
    return Network(name=name, holder=holder)


def _run_inside(pid: int, *words: str, lines: Iterable[str] = ()) -> None:
    """Runs a command in a process's network namespace. lines: the command's input. Raises CommandError."""
    run_quietly(("nsenter", "--net", "--target", str(pid), "--", *words), "".join(f"{line}\n" for line in lines))


def mac_address_of(private_ip: str) -> str:
    """Returns the hardware address for a private address. It is the same for every instance that gets the address.

    Otherwise, hosts would use the old hardware address in their ARP cache for most of a minute.
    """
    return "06:00:" + ":".join(f"{int(part):02x}" for part in private_ip.split("."))
