"""Independent processes: each gets its rank and their number, and none waits for another, as in a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from node.protocol import Order
from train.engines.engine import RANK, WORLD_SIZE, Engine, Head, HostLaunch, Launch, Started, hosts_by_rank, take_turns


class EachEngine(Engine):
    """Starts one process for each worker, directly."""

    name = "each"
    program = "the supervisor"
    variables = (RANK, WORLD_SIZE)

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """In turn over the hosts."""
        return take_turns(hosts, workers, role="worker")

    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """One launch for each process, by rank."""
        addresses = [host.ip for host in hosts_by_rank(order) for _ in range(host.workers)]
        world: Mapping[str, str] = {WORLD_SIZE: str(len(addresses))}
        return tuple(HostLaunch("worker", ip, {RANK: str(rank), **world}) for rank, ip in enumerate(addresses))
