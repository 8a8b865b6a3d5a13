"""Places the runtime of our own programs on nodes, before anything else runs there."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.steps import plan_python, script_task
from bootstrap.runtime.code import FOLDER, runtime_digest
from bootstrap.runtime.runtime import Runtimes
from bootstrap.ssh.connection import NodeConnection
from bootstrap.transfer.distribute import Distribution, SetUp
from bootstrap.transfer.tree import TreeArchives
from foundation.progress import Event, Report


class RuntimePlacing:
    """Places the runtime on any number of nodes, which pass it on to each other. A context manager.

    cache: foundation.user_folders.cache_folder(). Safe to use from several threads.
    """

    def __init__(self, *, cache: Path, report: Report) -> None:
        self._report = report
        self._runtimes = Runtimes(cache, report)
        self._archives = TreeArchives((), cache=cache)
        self._distribution = Distribution(report=report)

    def __enter__(self) -> Self:
        self._archives.__enter__()
        self._distribution.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._distribution.__exit__(*exc)
        finally:
            self._archives.__exit__(*exc)

    def place(self, connection: NodeConnection, facts: NodeFacts) -> NodeFacts:
        """Places the runtime on a node that lacks it. Returns the node's facts, with it. Raises ClusterError."""
        digest = runtime_digest()
        if digest in facts.runtimes:
            return facts
        started = time.monotonic()
        name = connection.host.name
        runtime = self._runtimes.get(facts, node=name)
        needed, steps = plan_python(facts, runtime.packed, runtime.tree, what="our own programs", node=name)
        file, task = self._archives.write(runtime.tree)
        files = [*needed, file]
        tasks = [script_task(steps, what="unpacking Python", python=facts.python)] if steps else []
        tasks.append({**task, "folder": FOLDER, "python": runtime.python_path, "keep": [digest]})
        self._report(Event(kind="start", what=f"copying {_size_mb(files):.0f} MB of our own programs", where=name))
        self._distribution.set_up(connection, SetUp(python=facts.python, files=files, holds=facts.files, tasks=tasks))
        self._report(
            Event(kind="done", what="our own programs are there", where=name, duration_s=time.monotonic() - started)
        )
        return replace(facts, runtimes=facts.runtimes | {digest})


def _size_mb(files: Sequence[BundleFile]) -> float:
    return sum(file.size_bytes for file in files) / 1e6
