"""The connections to a cluster's nodes, each opened once, and parallel work on many nodes."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Self, TypeVar

from bootstrap.environment.facts import NodeFacts, gather_facts
from bootstrap.ssh.connection import InstanceAccess, NodeConnection, connect
from bootstrap.ssh.host import Host
from foundation.errors import ClusterError, ConfigError
from foundation.thread_pool import map_in_threads, run_in_thread

MAX_PARALLEL = 64
T = TypeVar("T")
Result = TypeVar("Result")


def on_all(items: Sequence[T], work: Callable[[T], Result]) -> list[Result]:
    """The results of `work` for all items, in parallel. Raises as `raise_failures`, when all have ended."""
    found = try_on_all(items, work)
    raise_failures(found)
    return [one for one in found if not isinstance(one, ClusterError)]


def raise_failures(found: Sequence[object]) -> None:
    """Raises the failures among the results of `try_on_all` as one ClusterError.

    It is a ConfigError, with its exit code, if all of them are.
    """
    failures = [one for one in found if isinstance(one, ClusterError)]
    # If every node fails in the same way (an unreachable package index), the failure is reported once.
    messages = list(dict.fromkeys(map(str, failures)))
    if len(messages) > 1:
        summary = "\n".join(messages)
        kind = ConfigError if all(isinstance(error, ConfigError) for error in failures) else ClusterError
        raise kind(f"{len(failures)} of {len(found)} nodes failed:\n{summary}", hint=failures[0].hint)
    if failures:
        raise failures[0]


def try_on_all(items: Sequence[T], work: Callable[[T], Result]) -> "list[Result | ClusterError]":
    """The result of `work` for each item, in parallel, or its failure. Raises other errors when all have ended."""

    def attempt(item: T, _check: object) -> Result | BaseException:
        try:
            return work(item)
        except BaseException as error:  # noqa: BLE001 - passed to the caller's thread, which raises it
            return error

    found: list[Result | ClusterError] = []
    for one in map_in_threads(attempt, items, threads=MAX_PARALLEL):
        if isinstance(one, BaseException) and not isinstance(one, ClusterError):
            raise one
        found.append(one)
    return found


class Connections:
    """The open connections to a cluster's nodes, by instance id. A context manager that closes them.

    open_connection: opens the one to a host.
    """

    def __init__(self, open_connection: Callable[[Host], NodeConnection]) -> None:
        self._open_connection = open_connection
        self._open: dict[str, NodeConnection] = {}
        self._early: dict[str, tuple[Host, Future[NodeConnection | None]]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._open.values():
            connection.close()
        for _, future in self._early.values():
            future.add_done_callback(_hang_up)

    def begin(
        self,
        hosts: Iterable[Host],
        access: InstanceAccess,
        *,
        python: str,
        ask: Callable[[NodeConnection, NodeFacts], object] | None = None,
    ) -> None:
        """Starts to connect to instances at their last known addresses, to gather facts, and then to `ask`.

        python: [bootstrap] python. ask: a further question to each node.
        Connects only to nodes with a pinned host key, so that another machine at the address learns nothing. `get`
        drops a connection whose address or user has changed, and retries a failed one.
        """
        for host in islice(hosts, MAX_PARALLEL):
            if access.pins.find(host.instance_id) is not None:
                self._early[host.instance_id] = (host, run_in_thread(partial(_go_ahead, host, access, python, ask)))

    def get(self, host: Host) -> NodeConnection:
        """The connection to a host. Opens it if necessary. Raises ConnectError, AwsError, ClusterError."""
        connection = self._open.get(host.instance_id)
        if connection is None:
            connection = self._take_early(host) or self._open_connection(host)
            with self._lock:
                self._open[host.instance_id] = connection
        return connection

    def describe(self, host: Host, *, python: str) -> tuple[NodeConnection, NodeFacts]:
        """The connection to a host, and its facts, which may have been gathered before.

        python: [bootstrap] python. Raises ConnectError, AwsError, ClusterError.
        """
        connection = self.get(host)
        facts, connection.facts = connection.facts, None  # only once, since the set-up changes them
        return connection, facts or gather_facts(connection, python=python)

    def _take_early(self, host: Host) -> NodeConnection | None:
        begun, future = self._early.pop(host.instance_id, (None, None))
        if begun is None or future is None:
            return None
        if (begun.address, begun.user) != (host.address, host.user):
            future.add_done_callback(_hang_up)
            return None
        connection = future.result()
        if connection is not None:
            connection.host = host
        return connection


def _go_ahead(
    host: Host, access: InstanceAccess, python: str, ask: Callable[[NodeConnection, NodeFacts], object] | None
) -> NodeConnection | None:
    """The connection, with its facts and answer; without those that failed. Who needs them tries again, and raises."""
    try:
        connection = connect(host, private_key=access.private_key, contact=access.meet(host))
    except ClusterError:
        return None
    with suppress(ClusterError):
        connection.facts = facts = gather_facts(connection, python=python)
        connection.answer = ask(connection, facts) if ask else None
    return connection


def _hang_up(future: "Future[NodeConnection | None]") -> None:
    if future.exception() is None and (connection := future.result()) is not None:
        connection.close()
