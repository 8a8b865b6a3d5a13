"""Where the files come from that no node has yet: this machine, the package index's URLs, a folder in S3."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bootstrap.config import Distribute, Fetch
from bootstrap.index import bring_here
from bootstrap.shelf import BundleFile
from provision.errors import ClusterError
from provision.progress import Event, Report

PROBE_S = 2.0
"""How long a node tries to reach the package index before the wheels are fetched here."""
CHAIN_HINT = 'set [bootstrap] distribute = "chain": then they come through this machine where need be'


class Store(Protocol):
    """A folder in S3 that nodes take files from. train/s3/store.py is one."""

    @property
    def authorities(self) -> str | None:
        """Certificates of authorities that nodes have to trust beside their own, PEM."""

    def share(self, files: Sequence[BundleFile], find_path: Callable[[BundleFile], Path]) -> Mapping[str, str]:
        """Have the files there, and return a URL for each, by its SHA-256; `find_path` brings one to this machine.

        A URL is good for some hours, and a secret for as long. Raises ClusterError.
        """

    def render_place(self, file: BundleFile) -> str:
        """Where a file lies, for people. Pure."""


class Sources:
    """For one transfer. Safe to use from several threads."""

    def __init__(
        self, *, report: Report, distribute: Distribute = "chain", fetch: Fetch = "auto", store: Store | None = None
    ) -> None:
        self._report = report
        self._distribute = distribute
        self._fetch = fetch
        self._store = store if distribute == "s3" else None
        self._lock = threading.Lock()
        self._shared: dict[str, str] = {}
        self._refused: ClusterError | None = None
        self._unreachable = False

    @property
    def is_shared(self) -> bool:
        """Whether every node takes by itself what has a URL."""
        return self._distribute != "chain"

    def find_urls(self, files: Sequence[BundleFile]) -> dict[str, tuple[str, ...]]:
        """The URLs for nodes, by SHA-256, of the files that have any. Raises ClusterError for what S3 refuses."""
        if self._store is None:
            return {file.sha256: file.urls for file in files if file.urls}
        with self._lock:  # so that each file is put there once
            if self._refused is not None:
                raise self._refused
            missing = [file for file in files if is_kept(file) and file.sha256 not in self._shared]
            if missing:
                try:
                    self._shared.update(self._store.share(missing, self._bring))
                except ClusterError as error:  # not to be tried again for each node
                    self._refused = error
                    raise
            return {file.sha256: (self._shared[file.sha256],) for file in files if file.sha256 in self._shared}

    def direction(self) -> dict[str, Any]:
        """What an agent is told in order to take files from their URLs."""
        return {
            "urls": self._store.authorities if self._store is not None else None,
            "probe_s": PROBE_S if not self.is_shared and self._fetch == "auto" else None,
        }

    def is_for_node(self, file: BundleFile) -> bool:
        """Whether the node that this machine would send a file is to try the file's URLs first."""
        if self.is_shared or not file.urls:
            return False
        return self._fetch == "head" or (self._fetch == "auto" and not self._unreachable and not file.path.exists())

    def note_failure(self, file: BundleFile, why: Sequence[str], *, node: str) -> None:
        """A node could not take a file from its URL. Raises ClusterError unless it can come from here instead."""
        said = "; ".join(why)
        if self._store is not None:
            place = self._store.render_place(file)
            raise ClusterError(
                f"{node}: {file.name} could not be taken from {place}: {said}",
                hint=f"cluster data rm {place}, if it is damaged, and the same command again; "
                'or set [bootstrap] distribute = "chain"',
            )
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
        """Where a file lies on this machine; it is brought here if need be. Raises ClusterError."""
        with self._lock:
            return self._bring(file)

    def _bring(self, file: BundleFile) -> Path:
        if file.urls:
            bring_here(file, report=self._report)
        return file.path


def is_kept(file: BundleFile) -> bool:
    """Whether a file is of use beyond one command: a wheel, or a packed Python. Pure."""
    return file.name.endswith((".whl", ".tar.gz"))


def choose_fetch(distribute: Distribute, fetch: Fetch) -> Fetch:
    """How the bundle is fetched, as bundle.py takes it. Pure."""
    if distribute == "pypi":
        return "head"
    return "auto" if distribute == "s3" and fetch == "head" else fetch
