"""Where files come from that no node has yet: this machine, or the package index."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bootstrap.config import Distribute, Fetch
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.package_index import bring_here
from foundation.errors import ClusterError
from foundation.progress import Event, Report

PROBE_S = 2.0
"""How long a node tries to reach the package index before this machine fetches the wheels."""
CHAIN_HINT = 'set [bootstrap] distribute = "chain": then they come through this machine where need be'


class Sources:
    """For one transfer. Safe to use from several threads."""

    def __init__(self, *, report: Report, distribute: Distribute = "chain", fetch: Fetch = "auto") -> None:
        self._report = report
        self._distribute = distribute
        self._fetch = fetch
        self._lock = threading.Lock()
        self._unreachable = False

    def find_index_files(self, files: Sequence[BundleFile]) -> set[str]:
        """The SHA-256 of the files that every node takes from the package index by itself."""
        return {file.sha256 for file in files if file.urls} if self._distribute == "pypi" else set()

    def direction(self) -> dict[str, Any]:
        """The message that tells an agent to take files from their URLs."""
        probes = self._distribute == "chain" and self._fetch == "auto"
        return {"index": True, "probe_s": PROBE_S if probes else None}

    def is_for_node(self, file: BundleFile) -> bool:
        """Whether a node tries a file's URLs before this machine uploads the file."""
        if self._distribute == "pypi" or not file.urls:
            return False
        return self._fetch == "head" or (self._fetch == "auto" and not self._unreachable and not file.path.exists())

    def note_failure(self, file: BundleFile, why: Sequence[str], *, node: str) -> None:
        """Note that a node could not take a file from its URL. Raises ClusterError unless this machine may send it."""
        said = "; ".join(why)
        if self._distribute == "pypi":
            raise ClusterError(
                f'{node}: [bootstrap] distribute = "pypi", and {file.name} could not be taken from there: {said}',
                hint=CHAIN_HINT,
            )
        if self._fetch == "head":
            raise ClusterError(
                f'{node}: [bootstrap] fetch = "head", and {file.name} could not be taken from there: {said}',
                hint='set [bootstrap] fetch = "auto" or "here": then the wheels come through this machine',
            )
        with self._lock:
            known, self._unreachable = self._unreachable, True
        if not known:
            what = f"the wheels come through this machine, the package index could not be reached from there: {said}"
            self._report(Event(kind="info", what=what, where=node))

    def find_path(self, file: BundleFile) -> Path:
        """The path of a file on this machine, fetched if need be. Raises ClusterError."""
        with self._lock:
            if file.urls:
                bring_here(file, report=self._report)
            return file.path
