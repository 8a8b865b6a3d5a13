"""The connections to a cluster's nodes: each made once, and where a node was before, ahead of being asked for."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from bootstrap.connection import Host, NodeConnection, connect, wait_for_connection
from bootstrap.facts import NodeFacts, gather_facts
from bootstrap.first_contact import Console, FirstContact
from bootstrap.host_keys import HostKeyPins
from bootstrap.side_by_side import MAX_PARALLEL
from provision.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class _Early:
    """A connection that was made ahead, and what was seen over it; None for what did not work."""

    connection: NodeConnection | None = None
    facts: NodeFacts | None = None


class Connections:
    """The open connections to a cluster's nodes, by instance id. A context manager: leaving it hangs up.

    connect_to_other: connects to hosts that are not the cluster's, if there may be any.
    """

    def __init__(
        self,
        *,
        private_key: Path,
        pins: HostKeyPins,
        console: Console,
        wait_s: float,
        connect_to_other: Callable[[Host], NodeConnection] | None = None,
    ) -> None:
        self._connect_to_other = connect_to_other
        self._private_key = private_key
        self._pins = pins
        self._console = console
        self._wait_s = wait_s
        self._open: dict[str, NodeConnection] = {}
        self._early: dict[str, tuple[Host, Future[_Early]]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._open.values():
            connection.close()
        for _, future in self._early.values():
            future.add_done_callback(_hang_up)

    @property
    def pins(self) -> HostKeyPins:
        """The host keys of this cluster."""
        return self._pins

    def begin(self, hosts: Iterable[Host], *, python: str) -> None:
        """Begin to connect to nodes where they were the last time, and to look at them; python: [bootstrap] python.

        Who is a node, and where, `get` is told: what does not agree with that is dropped there, and what does not work
        is done again. Only nodes whose host key is pinned: another machine by now at that address is told nothing.
        """
        for host in islice(hosts, MAX_PARALLEL):
            if self._pins.find(host.instance_id) is not None:
                future: Future[_Early] = Future()
                self._early[host.instance_id] = (host, future)
                threading.Thread(target=self._go_ahead, args=(host, python, future), daemon=True).start()

    def get(self, host: Host) -> NodeConnection:
        """The connection to a host, opened if need be. Raises ConnectError, AwsError."""
        connection = self._open.get(host.instance_id)
        if connection is None:
            connection = self._take_early(host) or self._make(host)
            with self._lock:
                self._open[host.instance_id] = connection
        return connection

    def _make(self, host: Host) -> NodeConnection:
        if host.spec and self._connect_to_other is not None:
            return self._connect_to_other(host)
        return wait_for_connection(
            host, private_key=self._private_key, pins=self._pins, console=self._console, timeout_s=self._wait_s
        )

    def take_facts(self, host: Host) -> NodeFacts | None:
        """What was seen of a host over a connection that `begin` made; once, for what is done there changes it."""
        return self._facts.pop(host.instance_id, None)

    def _take_early(self, host: Host) -> NodeConnection | None:
        begun, future = self._early.pop(host.instance_id, (None, None))
        if begun is None or future is None:
            return None
        if (begun.address, begun.user) != (host.address, host.user):
            future.add_done_callback(_hang_up)
            return None
        early = future.result()
        if early.connection is not None:
            early.connection.host = host
        if early.facts is not None:
            self._facts[host.instance_id] = early.facts
        return early.connection

    def _go_ahead(self, host: Host, python: str, future: Future[_Early]) -> None:
        connection = None
        try:
            contact = FirstContact(host.instance_id, pins=self._pins, console=self._console)
            connection = connect(host, private_key=self._private_key, contact=contact)
            future.set_result(_Early(connection=connection, facts=gather_facts(connection, python=python)))
        except ClusterError:  # met again, and told, by who asks for this host
            future.set_result(_Early(connection=connection))
        except BaseException as error:  # noqa: BLE001 - crosses over to the thread that asks
            future.set_exception(error)


def _hang_up(future: Future[_Early]) -> None:
    if future.exception() is None and (connection := future.result().connection) is not None:
        connection.close()
