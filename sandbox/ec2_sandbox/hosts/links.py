"""The hosts' links to the router, and which of them reach each other."""

import logging
from collections.abc import Iterable, Mapping
from itertools import combinations

from ec2_sandbox.api import regions
from ec2_sandbox.api.ec2 import read_groups
from ec2_sandbox.hosts import network
from ec2_sandbox.hosts.network import CommandError, Cuts, Network, Port, link_of

log = logging.getLogger("ec2_sandbox.links")


class Links:
    """What the router lets pass between hosts. Use it under EC2's lock. parted: pairs of instances that are cut off."""

    def __init__(self, network: Network) -> None:
        self.parted: set[frozenset[str]] = set()
        self._network = network
        self._loaded = ""

    def refresh(self, backend: regions.Regions, numbers: Mapping[str, int], off: Iterable[str]) -> None:
        """Loads the security groups and cuts into the router if anything has changed.

        numbers: of the links of all hosts, by instance. off: the instances without a network.
        """
        links = {instance_id: link_of(number) for instance_id, number in numbers.items()}
        ports = [Port(link=link, groups=_groups_of(backend, instance_id)) for instance_id, link in links.items()]
        groups = read_groups(backend, {group for port in ports for group in port.groups})
        between = [pair for pair in combinations(sorted(links), 2) if frozenset(pair) in self.parted]
        cuts = Cuts(
            between=frozenset((links[one], links[other]) for one, other in between),
            off=frozenset(links[instance_id] for instance_id in off),
        )
        ruleset = network.render_ruleset(groups, ports, cuts)
        if ruleset == self._loaded:
            return
        try:
            self._network.load_firewall(ruleset)
        except CommandError as error:
            log.error("the security groups did not change: %s", error)  # noqa: TRY400 -- the message is enough
            return
        self._loaded = ruleset


def _groups_of(backend: regions.Regions, instance_id: str) -> tuple[str, ...]:
    interface = backend.get_instance(instance_id).nics.get(0)
    return tuple(group.id for group in interface.group_set) if interface is not None else ()
