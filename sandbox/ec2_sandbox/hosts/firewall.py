"""Security groups as nftables rules of the router, and which hosts' links are cut.

A packet passes if a rule of one of the sender's groups and a rule of one of the receiver's groups allow it. Packets of
an allowed connection pass in both directions, even after the rule is removed, as with EC2's connection tracking.
Packets from or to this machine, which represents the Internet, are checked only on the host's side. A host with unknown
groups is disconnected.

Source: EC2 user guide, "Security group rules" and "Amazon EC2 security group connection tracking".
"""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models.security_groups import SecurityGroup, SecurityGroupRule

from ec2_sandbox.api.ec2 import Regions, list_instances
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.hosts.network import UPLINK, CommandError, Network, link_of

TABLE = "sandbox"
ALL = "-1"
ALL_PORTS = (0, 65535)
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1}
EVERYBODY = "0.0.0.0/0"

log = logging.getLogger("ec2_sandbox.firewall")


class Firewall:
    """What the router lets pass between hosts. Use it under EC2's lock. parted: pairs of instances that are cut off."""

    def __init__(self, network: Network) -> None:
        self.parted: set[frozenset[str]] = set()
        self._network = network
        self._loaded = ""

    def refresh(self, regions: Regions, numbers: Mapping[str, int], off: Iterable[str]) -> None:
        """Loads the security groups and cuts into the router if anything has changed.

        numbers: of the links of all hosts, by instance. off: the instances without a network.
        """
        links = {instance_id: link_of(number) for instance_id, number in numbers.items()}
        pairs = (pair for pair in itertools.combinations(links, 2) if frozenset(pair) in self.parted)
        ruleset = render_ruleset(
            [group for backend in regions for groups in backend.groups.values() for group in groups.values()],
            {links[one.id]: _groups_of(one) for one in list_instances(regions) if one.id in links},
            members=_members_of(regions),
            prefix_lists={name: one for backend in regions for name, one in backend.managed_prefix_lists.items()},
            parted=[(links[one], links[other]) for one, other in pairs],
            off=[links[instance_id] for instance_id in off],
        )
        if ruleset == self._loaded:
            return
        try:
            self._network.load_firewall(ruleset)
        except CommandError as error:
            log.error("the security groups did not change: %s", error)  # noqa: TRY400 -- the message is enough
            return
        self._loaded = ruleset


def _groups_of(instance: SandboxInstance) -> list[str]:
    interface = instance.nics.get(0)
    return [group.id for group in interface.group_set] if interface is not None else []


def _members_of(regions: Regions) -> dict[str, list[str]]:
    """Returns the private addresses of the network interfaces in each group."""
    members: dict[str, list[str]] = {}
    for interface in itertools.chain.from_iterable(backend.enis.values() for backend in regions):
        for group in interface.group_set:
            members.setdefault(group.id, []).append(str(interface.private_ip_address))
    return members


def render_ruleset(
    groups: Iterable[SecurityGroup], ports: Mapping[str, Iterable[str]], *, members: Mapping[str, Iterable[str]],
    prefix_lists: Mapping[str, Any], parted: Collection[tuple[str, str]] = (), off: Collection[str] = (),
) -> str:  # fmt: skip
    """Returns input for `nft -f` that replaces all rules. Pure, and independent of the arguments' order.

    ports: the groups of each host, by its link. members: the private addresses in each group. prefix_lists: by id.
    parted: links that cannot reach each other. off: disconnected links.
    """
    groups = sorted(groups, key=lambda group: group.id)
    known = {group.id for group in groups}
    lines = [f"table inet {TABLE} {{", "}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for group in groups:
        lines += _render_members(group.id, sorted(members.get(group.id, ())))
        for direction, rules, side, verdict in (
            ("in", group.ingress_rules, "saddr", "accept"),
            ("out", group.egress_rules, "daddr", "goto arrive"),
        ):
            rendered = {f"{match} {verdict}".strip() for match in _render_rules(rules, side, known, prefix_lists)}
            lines += _render_chain(f"{_name(group.id)}_{direction}", sorted(rendered))
    for link, allowed in sorted(ports.items()):
        for direction in ("in", "out"):
            jumps = [f"jump {_name(group_id)}_{direction}" for group_id in sorted(allowed) if group_id in known]
            lines += _render_chain(f"{link}_{direction}", [*jumps, "drop"])
    arriving = [f'"{UPLINK}" : accept', *(f'"{link}" : goto {link}_in' for link in sorted(ports))]
    leaving = [f'"{UPLINK}" : goto arrive', *(f'"{link}" : goto {link}_out' for link in sorted(ports))]
    outside = 'oifname "lo" reject with icmp type net-unreachable'
    lines += _render_chain("arrive", [f"oifname vmap {{ {', '.join(arriving)} }}", outside, "drop"])
    lines += _render_chain("leave", [f"iifname vmap {{ {', '.join(leaving)} }}", "drop"])
    lines += _render_chain("forward", _render_forward(parted, off))
    return "\n".join([*lines, "}"]) + "\n"


def _render_forward(parted: Collection[tuple[str, str]], off: Collection[str]) -> list[str]:
    rules = ["type filter hook forward priority filter; policy drop;", "meta nfproto != ipv4 drop"]
    if parted:
        pairs = sorted({pair for one, other in parted for pair in ((one, other), (other, one))})
        listed = ", ".join(f'"{one}" . "{other}"' for one, other in pairs)
        rules.append(f"iifname . oifname {{ {listed} }} drop")
    if off:
        listed = ", ".join(f'"{link}"' for link in sorted(off))
        rules += [f"iifname {{ {listed} }} drop", f"oifname {{ {listed} }} drop"]
    return [*rules, "ct state established,related accept", "goto leave"]


def _render_members(group_id: str, addresses: list[str]) -> list[str]:
    elements = [f"    elements = {{ {', '.join(addresses)} }}"] if addresses else []
    return [f"  set {_name(group_id)} {{", "    type ipv4_addr", *elements, "  }"]


def _render_rules(
    rules: Iterable[SecurityGroupRule], side: str, known: set[str], prefix_lists: Mapping[str, Any]
) -> Iterator[str]:
    """Yields what the rules match. Those with an unknown group, for IPv6 or with invalid numbers match nothing."""
    for rule in filter(_makes_sense, rules):
        for peer in _find_peers(rule, known, prefix_lists):
            yield " ".join([*([f"ip {side} {peer}"] if peer != EVERYBODY else []), *_render_match(rule)])


def _find_peers(rule: SecurityGroupRule, known: set[str], prefix_lists: Mapping[str, Any]) -> Iterator[str]:
    """Yields the networks of a rule, and the set of the members of its group."""
    if rule.cidr_ipv4:
        yield str(IPv4Network(rule.cidr_ipv4, strict=False))
    if (group_id := rule.source_group.get("GroupId")) in known:
        yield f"@{_name(group_id)}"
    prefix_list = prefix_lists.get(rule.prefix_list_id or "")
    if prefix_list is not None and prefix_list.address_family == "IPv4":
        for entry in prefix_list.entries.get(prefix_list.version or 0) or []:
            yield str(IPv4Network(entry["Cidr"], strict=False))


def _ports_of(rule: SecurityGroupRule) -> tuple[int, int]:
    """Returns a rule's range of ports, or the type and code for icmp; -1 means any."""
    return -1 if rule.from_port is None else rule.from_port, -1 if rule.to_port is None else rule.to_port


def _render_match(rule: SecurityGroupRule) -> list[str]:
    protocol, (low, high) = str(rule.ip_protocol), _ports_of(rule)
    if protocol == ALL:
        return []
    if protocol == "icmp" and low >= 0:
        return [f"icmp type {low}", *([f"icmp code {high}"] if high >= 0 else [])]
    if protocol in ("tcp", "udp") and low >= 0 and (low, high) != ALL_PORTS:
        return [f"{protocol} dport {low}-{high}" if low != high else f"{protocol} dport {low}"]
    return [f"ip protocol {PROTOCOLS.get(protocol, protocol)}"]


def _makes_sense(rule: SecurityGroupRule) -> bool:
    """Returns whether the protocol and the ports of a rule are valid.

    moto accepts any values, but nft would refuse the whole ruleset for an invalid one.
    """
    protocol, (low, high) = str(rule.ip_protocol), _ports_of(rule)
    if protocol not in (ALL, *PROTOCOLS) and not (protocol.isdigit() and int(protocol) < 256):
        return False
    if protocol == "icmp":
        return low < 256 and high < 256
    return low < 0 or low <= high < 65536


def _render_chain(name: str, rules: list[str]) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def _name(group_id: str) -> str:
    # nft's names cannot contain a hyphen.
    return group_id.replace("-", "_")
