"""Finds cluster.toml, and the clusters that were launched from its folder. Fast to import, for completion."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.durations import render_time
from foundation.errors import ClusterError
from foundation.user_folders import state_folder
from provision.folders import find_launched

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

NAME_LEFT = ("status", "list", "up", "down", "train", "run")
"""The commands that name the clusters of find_left."""


def find_above(path: Path) -> Path | None:
    """Returns the nearest cluster.toml above this folder, if this folder has none; otherwise None.

    Files of other users, except root, are ignored: in a folder such as /tmp, anyone could create one above the projects
    of others.
    """
    if path.exists():
        return None
    for folder in Path.cwd().parents:
        found = folder / path.name
        with suppress(OSError):
            if found.stat().st_uid in (os.getuid(), 0):
                return found
    return None


def find_left(folder: Path, config: "ClusterConfig | None") -> Iterator[str]:
    """Yields a warning for each cluster launched from `folder` that cost money when last seen, except that of `config`.

    Reads only files of this machine. config: None if cluster.toml does not exist.
    """
    for root in find_launched(state_folder(), folder):
        if config is None or not _is_of(config, root):
            yield from _describe_left(root)


def _is_of(config: "ClusterConfig", root: Path) -> bool:
    """Whether a cluster's files belong to the cluster in cluster.toml. root: their folder. Pure."""
    if root.name != config.name:
        return False
    from provision.config import all_regions  # noqa: PLC0415 - as in _describe_left

    if config.cloud == "aws":
        return root.parent.parent.name == "aws" and root.parent.name in all_regions(config.provision)
    return config.cloud == "sandbox" and root.parent.name.startswith("sandbox-")


def _describe_left(root: Path) -> Iterator[str]:
    from cluster.views.status import render_usd  # noqa: PLC0415 - rarely needed, and slow to import
    from provision.cost import storage  # noqa: PLC0415
    from provision.cost.bill import make_bills  # noqa: PLC0415
    from provision.model import count  # noqa: PLC0415

    try:
        ledger = storage.read(root)
    except ClusterError as error:
        yield f"cluster {root.name}, launched from this folder, is not deleted; {error.message}"
        return
    at = max(ledger.seen.values(), default=0.0)
    bill = next((bill for bill in make_bills(ledger, now=at) if bill.usd_per_hour != 0.0), None)
    if bill is not None:
        nodes = sum(node.ended_at is None for node in bill.nodes)
        costs = count(nodes, "node costs", "nodes cost") if nodes else "its volumes cost"
        usd = render_usd(bill.usd_per_hour)
        simulated = " (simulated)" if root.parent.name.startswith("sandbox-") else ""
        region = "" if simulated else f" in {root.parent.name}"
        yield (
            f"cluster {root.name}{region}, launched from this folder, is not deleted: "
            f"{costs} {usd} per hour{simulated}, as of {render_time(at)}"
            f' (to delete it: set name = "{root.name}" in cluster.toml, then cluster down)'
        )
