"""Each host's link to the router: what its security groups let through, what is cut on purpose, how wide it is."""

import logging
from itertools import combinations

from moto.ec2.models import EC2Backend

from sandbox.firewall import Cuts, Port, render_ruleset
from sandbox.network import CommandError, Network, link_of
from sandbox.security_groups import read_groups

log = logging.getLogger("sandbox.links")


class Links:
    """The links of all hosts. To be called under the lock of EC2; what is changed here counts from `refresh` on."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._numbers: dict[str, int] = {}
        self._partitions: set[frozenset[str]] = set()
        self._off: set[str] = set()
        self._loaded = ""

    def attach(self, instance_id: str, number: int) -> None:
        """A host is about to be plugged in; until its groups are known, nothing gets through."""
        self._numbers[instance_id] = number

    def detach(self, instance_id: str) -> None:
        """The host is gone."""
        del self._numbers[instance_id]
        self._off.discard(instance_id)

    def part(self, one: str, other: str) -> None:
        """Two instances do not see each other any more, whatever hosts they will have."""
        self._partitions.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> bool:
        """The opposite of `part`; False when they were not parted."""
        known = frozenset((one, other)) in self._partitions
        self._partitions.discard(frozenset((one, other)))
        return known

    def switch(self, instance_id: str, *, on: bool) -> None:
        """Cuts a host from everything, or ends that."""
        if on:
            self._off.discard(instance_id)
        else:
            self._off.add(instance_id)

    def refresh(self, backend: EC2Backend) -> None:
        """Brings the router's rules in line with the security groups, if anything differs; acts at once."""
        ports = [
            Port(link=link_of(number), groups=_groups_of(backend, instance_id))
            for instance_id, number in self._numbers.items()
        ]
        groups = read_groups(backend, {group for port in ports for group in port.groups})
        ruleset = render_ruleset(groups, ports, self._cuts())
        if ruleset == self._loaded:
            return
        try:
            self._network.load_firewall(ruleset)
        except CommandError as error:
            log.error("the security groups are as they were before: %s", error)  # noqa: TRY400 -- it is one command
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


def _groups_of(backend: EC2Backend, instance_id: str) -> tuple[str, ...]:
    interface = backend.get_instance(instance_id).nics.get(0)
    return tuple(group.id for group in interface.group_set) if interface is not None else ()
