"""Passes an image from the head to many nodes, from node to node, as transfer/ does with wheels.

The head saves the image to a file, which its agent serves. Each node takes the file, passes it on to the next node
while it arrives, and loads it. The image's id is the digest of its content, so every node loads the head's image.
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from bootstrap.container.reference import Reference
from bootstrap.environment.file_cache import BundleFile
from bootstrap.ssh.connections import on_all
from bootstrap.transfer.distribute import Distribution, SetUp
from foundation.errors import ClusterError
from foundation.progress import Event, Report

if TYPE_CHECKING:
    from bootstrap.container.prepare import ContainerNode

FEWEST_NODES = 2
NOT_HERE = Path(os.devnull)
"""The folder on this machine for files that only nodes have: it can contain no file."""


class _Saved(Struct, frozen=True):
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] = ""
    name: Annotated[str, Meta(pattern=r"^image-[0-9a-f]{12}\.tar$")] = ""
    size: Annotated[int, Meta(ge=0)] = 0
    failed: str | None = None


class _Done(Struct, frozen=True):
    failed: str | None = None


def is_chained(reference: Reference, lacking: int) -> bool:
    """Whether nodes take an image from each other; if not, each pulls it from the registry. Pure.

    lacking: the number of nodes that do not have the image, not counting the head. A single node pulls it as fast as it
    would take it from the head. ECR is in AWS's own network, and serves any number of nodes at their network's rate.
    No registry has an image that was built or loaded on the head.
    """
    if reference.is_local:
        return lacking > 0
    return lacking >= FEWEST_NODES and reference.ecr is None


def pass_on(head: "ContainerNode", others: Sequence["ContainerNode"], image_id: str, *, report: Report) -> None:
    """Passes the head's image on to other nodes.

    Reports failures instead of raising them: the caller checks which nodes have the image. Raises ConnectError if a
    node is lost.
    """
    with ExitStack() as stack:
        report(Event(kind="start", what=f"saving the image for {len(others)} nodes", where=head.name))
        saved = head.call({"save": image_id}, _Saved)
        if saved.failed is not None:
            report(Event(kind="warn", what=f"cannot save the image for others: {saved.failed}", where=head.name))
            return
        stack.callback(_forget, [head, *others], saved)
        file = BundleFile(path=NOT_HERE / saved.name, sha256=saved.sha256, size_bytes=saved.size)
        distribution = stack.enter_context(Distribution(report=report))
        distribution.offer(head.node.connection, _set_up(head, holds=[file]))
        if distribution.wake(file.sha256) is None:  # it has reported why
            return

        def take(talk: "ContainerNode") -> None:
            started = time.monotonic()
            size_mb = file.size_bytes / 1e6
            report(Event(kind="start", what=f"taking the image, {size_mb:.0f} MB, from another node", where=talk.name))
            try:
                distribution.set_up(talk.node.connection, _set_up(talk, files=[file]))
                failed = talk.call({"load": f"{saved.sha256}/{saved.name}"}, _Done).failed
            except ClusterError as error:
                failed = str(error)
            if failed is not None:
                report(Event(kind="warn", what=f"cannot take the image from another node: {failed}", where=talk.name))
                return
            took_s = time.monotonic() - started
            report(Event(kind="done", what="has the image from another node", where=talk.name, duration_s=took_s))

        on_all(others, take)


def _set_up(talk: "ContainerNode", *, files: Sequence[BundleFile] = (), holds: Sequence[BundleFile] = ()) -> SetUp:
    return SetUp(python=talk.node.facts.python, files=files, holds={file.sha256 for file in holds})


def _forget(talks: Sequence["ContainerNode"], saved: _Saved) -> None:
    """Removes the file from all nodes. Call this once no node takes it any more."""
    on_all(talks, lambda talk: talk.call({"forget": saved.sha256}, _Done))
