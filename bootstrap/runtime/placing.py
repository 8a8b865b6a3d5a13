"""Places the runtime of our own programs on nodes, before anything else runs there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.steps import plan_python, script_task
from bootstrap.runtime.code import FOLDER, runtime_digest
from bootstrap.runtime.runtime import Runtimes
from bootstrap.ssh.connection import NodeConnection
from bootstrap.step import step
from bootstrap.transfer.distribute import Distribution, SetUp
from bootstrap.transfer.tree import TreeArchives
from foundation.progress import Report

KEPT_RUNTIMES = 3
"""How many runtimes of other versions stay on a node, apart from those in use."""


@contextmanager
def placing_runtimes(*, cache: Path, report: Report) -> Iterator["RuntimePlacing"]:
    """Prepares to place the runtime on any number of nodes, which pass it on to each other.

    cache: foundation.user_folders.cache_folder().
    """
    with TreeArchives((), cache=cache) as archives, Distribution(report=report) as distribution:
        yield RuntimePlacing(Runtimes(cache, report), archives, distribution)


class RuntimePlacing(Struct, frozen=True):
    """Places the runtime on nodes. Safe to use from several threads."""

    runtimes: Runtimes
    archives: TreeArchives
    distribution: Distribution

    def place(self, connection: NodeConnection, facts: NodeFacts) -> NodeFacts:
        """Places the runtime on a node that lacks it. Returns the node's facts, with it. Raises ClusterError."""
        digest = runtime_digest()
        if digest in facts.runtimes:
            return facts
        name = connection.host.name
        runtime = self.runtimes.get(facts, node=name)
        needed, steps = plan_python(facts, runtime.packed, runtime.tree, what="our own programs", node=name)
        file, task = self.archives.write(runtime.tree)
        files = [*needed, file]
        size_mb = sum(file.size_bytes for file in files) / 1e6
        tasks = [script_task(steps, what="unpacking Python", python=facts.python)] if steps else []
        tasks.append({**task, "folder": FOLDER, "python": runtime.python, "keep": [digest], "newest": KEPT_RUNTIMES})
        wanted = SetUp(python=facts.python, files=files, holds=facts.files, tasks=tasks)
        what, done = f"copying {size_mb:.0f} MB of our own programs", "our own programs are there"
        with step(self.distribution.report, what, where=name, done=done):
            self.distribution.set_up(connection, wanted)
        return replace(facts, runtimes=facts.runtimes | {digest})
