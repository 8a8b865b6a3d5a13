"""Security groups as nftables rules of the router. Pure text; network.py loads it.

A packet passes when a rule of one of the sender's groups lets it out and a rule of one of the receiver's lets it in.
What belongs to a connection that was let through passes in both directions, also after the rule is gone, as EC2's
connection tracking has it. What comes from or goes to this machine, which stands for the Internet, is checked on the
host's side alone. A host whose groups are not known is cut off.

Source: EC2 user guide, "Security group rules" and "Amazon EC2 security group connection tracking".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from sandbox.hosts.network import UPLINK

TABLE = "sandbox"
ALL = "-1"
ALL_PORTS = (0, 65535)
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What one rule lets through: a protocol (-1, a name or a number), ports or ICMP type and code, and a peer.

    `peer`: a network or a security group's id. `from_port`, `to_port`: -1 stands for any; for icmp, type and code.
    """

    protocol: str
    peer: IPv4Network | str
    from_port: int = -1
    to_port: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A security group. `members`: the private addresses of all network interfaces that are in it."""

    id: str
    ingress: tuple[Rule, ...]
    egress: tuple[Rule, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A host's link to the router, and the security groups that its network interface is in."""

    link: str
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Links that are broken on purpose. `between`: pairs that do not see each other; `off`: cut from everything."""

    between: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    off: frozenset[str] = field(default_factory=frozenset)


def render_ruleset(groups: Iterable[Group], ports: Iterable[Port], cuts: Cuts) -> str:
    """Input of `nft -f` that puts these rules in the place of all that were there. Pure; the same for the same."""
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
    lines += _render_chain("arrive", [f"oifname vmap {{ {', '.join(arriving)} }}", "drop"])
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
    """A rule whose peer is a group that is gone, or whose numbers make no sense, lets nothing through."""
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
    """Moto takes any protocol and any ports; nft would refuse them, and all other rules with them."""
    if rule.protocol not in (ALL, *PROTOCOLS) and not (rule.protocol.isdigit() and int(rule.protocol) < 256):
        return False
    if rule.protocol == "icmp":
        return rule.from_port < 256 and rule.to_port < 256
    return rule.from_port < 0 or rule.from_port <= rule.to_port < 65536


def _render_chain(name: str, rules: list[str]) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def _name(group_id: str) -> str:
    # nft's names have no hyphen.
    return group_id.replace("-", "_")
