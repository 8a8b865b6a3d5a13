"""The hosts' links to the router, and which of them reach each other."""

import logging
from itertools import combinations

from ec2_sandbox.api import regions
from ec2_sandbox.api.ec2 import read_groups
from ec2_sandbox.hosts import network
from ec2_sandbox.hosts.network import CommandError, Cuts, Network, Port, link_of

log = logging.getLogger("ec2_sandbox.links")


class Links:
    """The links of all hosts. Use it under EC2's lock. Changes take effect with `refresh`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._numbers: dict[str, int] = {}
        self._partitions: set[frozenset[str]] = set()
        self._off: set[str] = set()
        self._loaded = ""

    def attach(self, instance_id: str, number: int) -> None:
        """Adds the link of a host. No packet passes until the next `refresh`."""
        self._numbers[instance_id] = number

    def detach(self, instance_id: str) -> None:
        """Removes the link of a host that has ended."""
        del self._numbers[instance_id]
        self._off.discard(instance_id)

    def part(self, one: str, other: str) -> None:
        """Cuts the connection between two instances, also between their later hosts."""
        self._partitions.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> bool:
        """Undoes `part`. Returns False if the two were not parted."""
        known = frozenset((one, other)) in self._partitions
        self._partitions.discard(frozenset((one, other)))
        return known

    def clear(self) -> None:
        """Removes the links of all hosts, which have ended, and connects all parted instances."""
        for known in (self._numbers, self._partitions, self._off):
            known.clear()

    def switch(self, instance_id: str, *, on: bool) -> None:
        """Connects a host to the network, or disconnects it."""
        (self._off.discard if on else self._off.add)(instance_id)

    def refresh(self, backend: regions.Backend) -> None:
        """Loads the security groups and cuts into the router if anything has changed."""
        ports = [
            Port(link=link_of(number), groups=_groups_of(backend, instance_id))
            for instance_id, number in self._numbers.items()
        ]
        groups = read_groups(backend, {group for port in ports for group in port.groups})
        ruleset = network.render_ruleset(groups, ports, self._cuts())
        if ruleset == self._loaded:
            return
        try:
            self._network.load_firewall(ruleset)
        except CommandError as error:
            log.error("the security groups did not change: %s", error)  # noqa: TRY400 -- the message is enough
            return
        self._loaded = ruleset

    def _cuts(self) -> Cuts:
        parted = [pair for pair in combinations(sorted(self._numbers), 2) if frozenset(pair) in self._partitions]
        return Cuts(
            between=frozenset((self._link(one), self._link(other)) for one, other in parted),
            off=frozenset(self._link(instance_id) for instance_id in self._off),
        )

    def _link(self, instance_id: str) -> str:
        return link_of(self._numbers[instance_id])


def _groups_of(backend: regions.Backend, instance_id: str) -> tuple[str, ...]:
    interface = backend.get_instance(instance_id).nics.get(0)
    return tuple(group.id for group in interface.group_set) if interface is not None else ()
