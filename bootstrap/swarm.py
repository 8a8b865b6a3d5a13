"""Who takes which files from whom, while nodes come and go: a chain, in the order in which the nodes are ready for it.

Each node takes from the one that joined before it, and knows those before that one, should it die. The first one takes
from this machine, whose uplink carries each file once.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

CANDIDATES_AT_MOST = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A node whose agent listens. `files` are digests: of what it has, and of what it is taking."""

    name: str
    address: str
    port: int
    files: frozenset[str]


class Swarm:
    """The members so far, in their order. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._lost: set[str] = set()
        self._feeding: dict[str, Member] = {}

    def join(self, member: Member, missing: Collection[str]) -> tuple[Member, ...]:
        """Add a member; whom it may take the missing files from, the nearest first."""
        with self._lock:
            candidates = choose_candidates(self._members, missing, lost=self._lost)
            self._members.append(member)
            self._lost.discard(member.address)  # it has come back
        return candidates

    def feed(self, member: Member, sha256: str, *, asked: Collection[Member]) -> Member | None:
        """Ask to be given a file by this machine, since none of those that `member` has asked gives it.

        None: do so. Otherwise another node is being given it already, and is the one to ask.
        """
        with self._lock:
            other = self._feeding.get(sha256)
            if other is not None and other != member and other not in asked and other.address not in self._lost:
                return other
            self._feeding[sha256] = member
            return None

    def lose(self, member: Member) -> None:
        """Note that a member is gone."""
        with self._lock:
            self._lost.add(member.address)


def choose_candidates(
    members: Sequence[Member], missing: Collection[str], *, lost: Collection[str]
) -> tuple[Member, ...]:
    """Those that have, or are taking, any of what is missing: the last that joined first. Pure.

    Since everybody takes from those that joined before, no circle arises.
    """
    wanted = frozenset(missing)
    fit = [member for member in reversed(members) if wanted & member.files and member.address not in lost]
    return tuple(fit[:CANDIDATES_AT_MOST])
