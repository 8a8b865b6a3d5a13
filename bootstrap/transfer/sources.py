"""The sources of a node's files: other nodes, or for the first node this machine or the package index.

The nodes form a chain, in the order in which they become ready. Each takes files from the node before it, and also
knows the earlier nodes in case that node dies. The first takes files from this machine, whose uplink carries each file
once.
"""

import re
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct

from bootstrap.environment.fetches import bring_all_here
from bootstrap.environment.file_cache import BundleFile, is_here
from bootstrap.step import step
from foundation.progress import Event, Report

CANDIDATES_AT_MOST = 32
_URL = re.compile(r"https?://\S+: ")
FIRST_S = 2.0
"""How long a node tries to reach the package index before this machine fetches the wheels instead."""


class Peer(Struct, frozen=True, kw_only=True):
    """A node whose agent listens. `files`: digests of the files that it has or is receiving."""

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
        """Adds a node. Returns the nodes from which it may take the missing files, nearest first."""
        with self._lock:
            candidates = choose_candidates(self._members, missing, lost=self._lost)
            self._members.append(member)
            self._lost.discard(member.address)  # it has come back
        return candidates

    def feed(self, member: Peer, sha256: str, *, excluded: Collection[Peer]) -> Peer | None:
        """The node from which `member` takes a file that no node in `excluded` has; None if this machine must send it.

        That node is already getting the file from this machine.
        """
        with self._lock:
            other = self._feeding.get(sha256)
            if other is not None and other != member and other not in excluded and other.address not in self._lost:
                return other
            self._feeding[sha256] = member
            return None

    def lose(self, member: Peer) -> None:
        """Notes that a node is gone."""
        with self._lock:
            self._lost.add(member.address)


def choose_candidates(members: Sequence[Peer], missing: Collection[str], *, lost: Collection[str]) -> tuple[Peer, ...]:
    """The nodes that have or are receiving any of the missing files, the last to join first. Pure.

    Nodes take only from those that joined before them, so there is no cycle.
    """
    wanted = frozenset(missing)
    fit = [member for member in reversed(members) if wanted & member.files and member.address not in lost]
    return tuple(fit[:CANDIDATES_AT_MOST])


class Sources:
    """The sources of files that no node has yet, for one transfer. Safe to use from several threads."""

    def __init__(self, *, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._unreachable = False
        self._expected: dict[str, BundleFile] = {}
        self._fetching = threading.Lock()

    def expect(self, files: Sequence[BundleFile]) -> None:
        """Notes the files that a node needs: if nodes do not reach the package index, they are fetched together."""
        with self._lock:
            self._expected |= {file.sha256: file for file in files if file.urls}

    def is_for_node(self, file: BundleFile) -> bool:
        """Whether a node tries a file's URLs before this machine uploads the file."""
        return bool(file.urls) and not self._unreachable and not file.path.exists()

    def note_failure(self, why: Sequence[str], *, node: str) -> None:
        """Notes that a node could not take a file from its URLs."""
        with self._lock:
            known, self._unreachable = self._unreachable, True
        if not known:
            reason = "; ".join(dict.fromkeys(_URL.sub("", one) for one in why))
            what = f"this machine sends the wheels, since the node does not reach the package index ({reason})"
            self._report(Event(kind="info", what=what, where=node))

    def find_path(self, file: BundleFile) -> Path:
        """The path of a file on this machine. Fetches the file if necessary. Raises ClusterError."""
        with self._lock:
            expected = self._expected if self._unreachable else {}
            wanted = {**expected, file.sha256: file} if file.urls else {}
        with self._fetching:
            missing = [one for one in wanted.values() if not is_here(one)]
            if missing:
                size_mb = sum(one.size_bytes for one in missing) / 1e6
                what = f"fetching wheels for the nodes: {len(missing)} files, {size_mb:.0f} MB"
                with step(self._report, what):
                    bring_all_here(missing)
        return file.path
