"""The sandbox's network: a router in its own network namespace, with one link to the machine and one to each host.

As in a VPC, every packet between two hosts passes through the router, which checks it against their security groups.
Hosts cannot change the router. Because the router has its own namespace, it does not change the machine's forwarding
and firewall, and they do not affect the router. The namespace ends with the process that holds it, and so do the router
and all links.
"""

import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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


# --- security groups as nftables rules of the router; pure text
#
# A packet passes if a rule of one of the sender's groups and a rule of one of the receiver's groups allow it. Packets
# of an allowed connection pass in both directions, even after the rule is removed, as with EC2's connection tracking.
# Packets from or to this machine, which represents the Internet, are checked only on the host's side. A host with
# unknown groups is disconnected.
#
# Source: EC2 user guide, "Security group rules" and "Amazon EC2 security group connection tracking".

TABLE = "sandbox"
ALL = "-1"
ALL_PORTS = (0, 65535)
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule, which allows packets. `protocol`: -1, a name or a number. `peer`: a network or a security group's id.

    `from_port`, `to_port`: a range of ports, or the type and code for icmp; -1 means any.
    """

    protocol: str
    peer: IPv4Network | str
    from_port: int = -1
    to_port: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A security group. `members`: the private addresses of the network interfaces in it."""

    id: str
    ingress: tuple[Rule, ...]
    egress: tuple[Rule, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A host's link to the router, and the security groups of its network interface."""

    link: str
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Links that faults have cut. `between`: pairs that cannot reach each other. `off`: disconnected links."""

    between: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    off: frozenset[str] = field(default_factory=frozenset)


def render_ruleset(groups: Iterable[Group], ports: Iterable[Port], cuts: Cuts) -> str:
    """Returns input for `nft -f` that replaces all rules. Pure, and independent of the arguments' order."""
    groups, ports = sorted(groups, key=lambda group: group.id), sorted(ports, key=lambda port: port.link)
    known = {group.id for group in groups}
    lines = [f"table inet {TABLE} {{", "}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for group in groups:
        lines += _render_members(group)
        lines += _render_chain(f"{_name(group.id)}_in", _render_rules(group.ingress, "saddr", "accept", known))
        lines += _render_chain(f"{_name(group.id)}_out", _render_rules(group.egress, "daddr", "goto arrive", known))
    for port in ports:
        for direction in ("in", "out"):
            jumps = [f"jump {_name(group)}_{direction}" for group in sorted(port.groups) if group in known]
            lines += _render_chain(f"{port.link}_{direction}", [*jumps, "drop"])
    arriving = [f'"{UPLINK}" : accept', *(f'"{port.link}" : goto {port.link}_in' for port in ports)]
    leaving = [f'"{UPLINK}" : goto arrive', *(f'"{port.link}" : goto {port.link}_out' for port in ports)]
    outside = 'oifname "lo" reject with icmp type net-unreachable'
    lines += _render_chain("arrive", [f"oifname vmap {{ {', '.join(arriving)} }}", outside, "drop"])
    lines += _render_chain("leave", [f"iifname vmap {{ {', '.join(leaving)} }}", "drop"])
    lines += _render_chain("forward", _render_forward(cuts))
    return "\n".join([*lines, "}"]) + "\n"


def _render_forward(cuts: Cuts) -> list[str]:
    rules = ["type filter hook forward priority filter; policy drop;", "meta nfproto != ipv4 drop"]
    if cuts.between:
        pairs = sorted({pair for one, other in cuts.between for pair in ((one, other), (other, one))})
        listed = ", ".join(f'"{one}" . "{other}"' for one, other in pairs)
        rules.append(f"iifname . oifname {{ {listed} }} drop")
    if cuts.off:
        listed = ", ".join(f'"{link}"' for link in sorted(cuts.off))
        rules += [f"iifname {{ {listed} }} drop", f"oifname {{ {listed} }} drop"]
    return [*rules, "ct state established,related accept", "goto leave"]


def _render_members(group: Group) -> list[str]:
    elements = [f"    elements = {{ {', '.join(sorted(group.members))} }}"] if group.members else []
    return [f"  set {_name(group.id)} {{", "    type ipv4_addr", *elements, "  }"]


def _render_rules(rules: Iterable[Rule], side: str, verdict: str, known: set[str]) -> list[str]:
    """Renders the rules, except those with an unknown group or invalid numbers, which allow nothing."""
    lines = []
    for rule in filter(_makes_sense, rules):
        if isinstance(rule.peer, IPv4Network):
            peer = [f"ip {side} {rule.peer}"] if rule.peer.prefixlen else []
        elif rule.peer in known:
            peer = [f"ip {side} @{_name(rule.peer)}"]
        else:
            continue
        lines.append(" ".join([*peer, *_render_match(rule), verdict]))
    return sorted(set(lines))


def _render_match(rule: Rule) -> list[str]:
    if rule.protocol == ALL:
        return []
    low, high = rule.from_port, rule.to_port
    if rule.protocol == "icmp" and low >= 0:
        return [f"icmp type {low}", *([f"icmp code {high}"] if high >= 0 else [])]
    if rule.protocol in ("tcp", "udp") and low >= 0 and (low, high) != ALL_PORTS:
        return [f"{rule.protocol} dport {low}-{high}" if low != high else f"{rule.protocol} dport {low}"]
    return [f"ip protocol {PROTOCOLS.get(rule.protocol, rule.protocol)}"]


def _makes_sense(rule: Rule) -> bool:
    """Returns whether the protocol and the ports of a rule are valid.

    moto accepts any values, but nft would refuse the whole ruleset for an invalid one.
    """
    if rule.protocol not in (ALL, *PROTOCOLS) and not (rule.protocol.isdigit() and int(rule.protocol) < 256):
        return False
    if rule.protocol == "icmp":
        return rule.from_port < 256 and rule.to_port < 256
    return rule.from_port < 0 or rule.from_port <= rule.to_port < 65536


def _render_chain(name: str, rules: list[str]) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def _name(group_id: str) -> str:
    # nft's names cannot contain a hyphen.
    return group_id.replace("-", "_")
