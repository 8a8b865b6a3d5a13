"""Home folders that several hosts share, as over NFS: they are set up, and cleaned, one host after another.

flock(2) does not lock out the other hosts of a network file system, so this machine does.
"""

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections, on_all
from bootstrap.ssh.host import Host
from foundation.errors import ConnectError
from foundation.progress import Event, Report
from foundation.remote_command import RemoteCommand

TIMEOUT_S = 60.0


def find_homes_of(hosts: Sequence[Host], connections: Connections, report: Report) -> tuple[tuple[str, ...], ...]:
    """Returns the ids of the hosts of each home folder; those of instances are their own. Raises ClusterError."""
    own = [host for host in hosts if host.spec]
    on_all(own, connections.get)
    found = find_homes([connections.get(host) for host in own])
    homes = tuple(tuple(own[at].instance_id for at in home) for home in found)
    for first, *others in homes:
        if others:
            report(Event(kind="info", what=f"{', '.join(others)}: the home folder is that of {first}"))
    return (*homes, *((host.instance_id,) for host in hosts if not host.spec))


def find_homes(connections: Sequence[NodeConnection]) -> tuple[tuple[int, ...], ...]:
    """Returns the hosts of each home folder, as indexes of `connections`, in order.

    Each host writes a marker file below ~/.cluster, and then looks for those of all. The names are new each time: a
    network file system may remember that a file did not exist. A host that cannot write, or is lost, has a home of its
    own: what follows reports it.
    """
    if len(connections) < 2:
        return tuple((index,) for index in range(len(connections)))
    mark = f"home-{secrets.token_hex(8)}"
    everything = " ".join(map(str, range(len(connections))))
    look = f'cd "$HOME/.cluster" && for at in {everything}; do [ ! -e {mark}-$at ] || echo $at; done'
    seen: dict[int, list[int]] = {}

    def run(index: int, script: str) -> str:
        try:
            return connections[index].run(RemoteCommand(script), check=False, timeout_s=TIMEOUT_S).stdout
        except ConnectError:
            return ""

    def write(index: int) -> None:
        run(index, f'umask 077; mkdir -p "$HOME/.cluster" && : >"$HOME/.cluster/{mark}-{index}"')

    def read(index: int) -> None:
        seen[index] = [int(word) for word in run(index, look).split() if word.isdecimal()]

    indexes = range(len(connections))
    on_all(indexes, write)
    on_all(indexes, read)
    homes = group_homes([seen[index] for index in indexes])
    on_all([home[0] for home in homes], lambda first: run(first, f'rm -f "$HOME/.cluster/{mark}"-*'))
    return homes


def group_homes(seen: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the hosts of each home folder. seen: the markers that each host has found. Pure."""
    homes: dict[int, list[int]] = {}
    for index, found in enumerate(seen):
        homes.setdefault(min((*found, index)), []).append(index)
    return tuple(map(tuple, homes.values()))


class Turns:
    """Lets the hosts of a home folder take turns, in order. homes: the hosts' names. Thread-safe."""

    def __init__(self, homes: Sequence[Sequence[str]]) -> None:
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
