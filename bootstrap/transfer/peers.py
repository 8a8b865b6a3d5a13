"""Which node takes files from which: a chain, in the order in which the nodes become ready.

Each node takes from the one that joined before it, and also knows the nodes before that one in case it dies. The first
node takes from this machine, whose uplink carries each file once.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

CANDIDATES_AT_MOST = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A node whose agent listens. `files`: digests of the files that it has or is taking."""

    name: str
    address: str
    port: int
    files: frozenset[str]


class Peers:
    """The nodes of one transfer, in the order in which they joined. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: list[Peer] = []
        self._lost: set[str] = set()
        self._feeding: dict[str, Peer] = {}

    def join(self, member: Peer, missing: Collection[str]) -> tuple[Peer, ...]:
        """Add a node; returns the nodes from which it may take the missing files, the nearest first."""
        with self._lock:
            candidates = choose_candidates(self._members, missing, lost=self._lost)
            self._members.append(member)
            self._lost.discard(member.address)  # it has come back
        return candidates

    def feed(self, member: Peer, sha256: str, *, asked: Collection[Peer]) -> Peer | None:
        """Decide whether this machine uploads a file to `member`, since none of the nodes that it asked has it.

        None: upload it. Otherwise the result is a node that is already getting the file: ask that one.
        """
        with self._lock:
            other = self._feeding.get(sha256)
            if other is not None and other != member and other not in asked and other.address not in self._lost:
                return other
            self._feeding[sha256] = member
            return None

    def lose(self, member: Peer) -> None:
        """Note that a node is gone."""
        with self._lock:
            self._lost.add(member.address)


def choose_candidates(members: Sequence[Peer], missing: Collection[str], *, lost: Collection[str]) -> tuple[Peer, ...]:
    """The nodes that have or are taking any missing file, the last that joined first. Pure.

    Nodes take only from those that joined before them, so there is no cycle.
    """
    wanted = frozenset(missing)
    fit = [member for member in reversed(members) if wanted & member.files and member.address not in lost]
    return tuple(fit[:CANDIDATES_AT_MOST])
