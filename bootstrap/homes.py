"""Home folders that several hosts share, as over NFS: they are set up, and cleaned, one host after another.

flock(2) does not lock out the other hosts of a network file system, so this machine does.
"""

import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections, on_all
from bootstrap.ssh.host import Host
from foundation.errors import ConnectError
from foundation.progress import Event, Report
from foundation.remote_command import RemoteCommand

TIMEOUT_S = 60.0
NAME_HOME = """
umask 077; mkdir -p "$HOME/.cluster" && cd "$HOME/.cluster" || exit
set -C
echo {name} 2>/dev/null >home-id
cat home-id
"""
"""Prints the name of a home folder. Copies of a disk have the same name: they are only set up one after another."""


def find_homes_of(hosts: Sequence[Host], connections: Connections, report: Report) -> dict[str, tuple[str, ...]]:
    """Returns the ids of the hosts of each home folder; those of instances are their own. Raises ClusterError."""
    own = [host for host in hosts if host.spec]
    found = find_homes(on_all(own, connections.get))
    homes = {name: tuple(connection.host.instance_id for connection in home) for name, home in found.items()}
    for first, *others in homes.values():
        if others:
            report(Event(kind="info", what=f"{', '.join(others)}: the home folder is that of {first}"))
    return homes | {host.instance_id: (host.instance_id,) for host in hosts if not host.spec}


def find_homes(connections: Sequence[NodeConnection]) -> dict[str, list[NodeConnection]]:
    """Returns the connections to the hosts of each home folder by its name, in order.

    The first host of a home folder writes a name for it there, which the others find. A host that cannot write, or is
    lost, has a home of its own: what follows reports it.
    """

    def find_name(connection: NodeConnection) -> str:
        name = secrets.token_hex(16)
        try:
            script = RemoteCommand(NAME_HOME.format(name=name))
            return connection.run(script, check=False, timeout_s=TIMEOUT_S).last_line or name
        except ConnectError:
            return name

    homes: dict[str, list[NodeConnection]] = {}
    for name, connection in zip(on_all(connections, find_name), connections, strict=True):
        homes.setdefault(name, []).append(connection)
    return homes


class Turns:
    """Lets the hosts of a home folder take turns, in order. homes: the hosts' names. Thread-safe."""

    def __init__(self, homes: Collection[Sequence[str]]) -> None:
        self._before = {name: home[at - 1] for home in homes for at, name in enumerate(home) if at}
        self._done: Mapping[str, threading.Event] = {name: threading.Event() for home in homes for name in home}

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Waits until the host before this one is done, with success or without, and then holds the turn."""
        if name in self._before:
            self._done[self._before[name]].wait()
        try:
            yield
        finally:
            self._done[name].set()
