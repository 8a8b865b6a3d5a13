"""The sources of files that no node has: the package index, or this machine, whose uplink carries each file once."""

import re
import threading
from collections.abc import Sequence
from pathlib import Path

from bootstrap.environment.fetches import bring_all_here
from bootstrap.environment.file_cache import BundleFile, is_here
from bootstrap.step import step
from foundation.progress import Event, Report

_URL = re.compile(r"https?://\S+: ")
FIRST_S = 2.0
"""How long a node tries to reach the package index before this machine fetches the wheels instead."""


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
            wanted = {**expected, file.sha256: file}
        with self._fetching:
            missing = [one for one in wanted.values() if not is_here(one)]
            if missing:
                size_mb = sum(one.size_bytes for one in missing) / 1e6
                what = f"fetching wheels for the nodes: {len(missing)} files, {size_mb:.0f} MB"
                with step(self._report, what):
                    bring_all_here(missing)
        return file.path
