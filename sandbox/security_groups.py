"""Which security groups there are and who is in them, from moto's EC2 to the firewall's terms."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models import EC2Backend

from sandbox.firewall import Group, Rule


class SecurityGroupsOfInstances(EC2Backend):
    """Part of the sandbox's EC2: an instance's groups and its first network interface's are one and the same."""

    def modify_instance_security_groups(self, instance_id: str, new_group_id_list: list[str]) -> Any:
        """As moto's, which leaves the interface in its former groups."""
        instance = super().modify_instance_security_groups(instance_id, new_group_id_list)
        instance.nics[0]._group_set = list(instance.security_groups)  # noqa: SLF001 -- moto has no other way in
        return instance

    def modify_network_interface_attribute(self, eni_id: str, group_ids: list[str], *args: Any, **kwargs: Any) -> None:
        """As moto's, which leaves the instance in its former groups."""
        super().modify_network_interface_attribute(eni_id, group_ids, *args, **kwargs)
        interface = self.get_network_interface(eni_id)
        if group_ids and interface.instance is not None and interface.device_index == 0:
            interface.instance.security_groups = list(interface._group_set)  # noqa: SLF001 -- moto has no other way in


def read_groups(backend: EC2Backend, wanted: Iterable[str]) -> tuple[Group, ...]:
    """The groups of these ids and all that their rules name."""
    everything = {group.id: group for groups in backend.groups.values() for group in groups.values()}
    members = _members_of(backend)
    found: dict[str, Group] = {}
    waiting = list(wanted)
    while waiting:
        group_id = waiting.pop()
        if group_id in found or group_id not in everything:
            continue
        group = everything[group_id]
        found[group_id] = Group(
            id=group_id,
            ingress=tuple(_read_rules(backend, group.ingress_rules)),
            egress=tuple(_read_rules(backend, group.egress_rules)),
            members=tuple(members.get(group_id, ())),
        )
        waiting += [
            rule.peer for rule in (*found[group_id].ingress, *found[group_id].egress) if isinstance(rule.peer, str)
        ]
    return tuple(found.values())


def _members_of(backend: EC2Backend) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for interface in backend.enis.values():
        for group in interface.group_set:
            members.setdefault(group.id, []).append(str(interface.private_ip_address))
    return members


def _read_rules(backend: EC2Backend, rules: Iterable[Any]) -> Iterator[Rule]:
    """A rule for IPv6 addresses is left out: the sandbox has none."""
    for rule in rules:
        for peer in _peers_of(backend, rule):
            yield Rule(
                protocol=str(rule.ip_protocol),
                peer=peer,
                from_port=-1 if rule.from_port is None else int(rule.from_port),
                to_port=-1 if rule.to_port is None else int(rule.to_port),
            )


def _peers_of(backend: EC2Backend, rule: Any) -> Iterator[IPv4Network | str]:
    if rule.cidr_ipv4:
        yield IPv4Network(rule.cidr_ipv4, strict=False)
    if rule.source_group.get("GroupId"):
        yield rule.source_group["GroupId"]
    prefix_list = backend.managed_prefix_lists.get(rule.prefix_list_id) if rule.prefix_list_id else None
    if prefix_list is not None and prefix_list.address_family == "IPv4":
        for entry in prefix_list.entries.get(prefix_list.version or 0) or []:
            yield IPv4Network(entry["Cidr"], strict=False)
