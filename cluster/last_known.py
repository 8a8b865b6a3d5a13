"""Finds cluster.toml, and the names of nodes and jobs that recent commands saw. Fast to import, for completion."""

import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from foundation.errors import ClusterError
from foundation.files import read_bounded, write_whole
from foundation.user_folders import cache_folder

Kind = Literal["nodes", "jobs"]
KINDS: tuple[Kind, ...] = ("nodes", "jobs")
MOST_NAMES = 50


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


def find_names(config_path: Path, kind: Kind) -> list[str]:
    """Returns the names of a cluster's nodes, or the ids and names of its jobs, as the last command saw them."""
    return _read(_file_of(config_path))[kind]


def remember_names(config_path: Path, kind: Kind, names: Sequence[str]) -> None:
    """Stores names for completion. A failure, such as a full disk, is ignored."""
    with suppress(OSError, ClusterError):
        path = _file_of(config_path)
        known = _read(path)
        kept = list(dict.fromkeys(names))[:MOST_NAMES]
        if known[kind] != kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({**known, kind: kept}).encode())


def _file_of(config_path: Path) -> Path:
    digest = zlib.crc32(os.fsencode(config_path.resolve()))
    return cache_folder() / "names" / f"{digest:08x}.json"


def _read(path: Path) -> dict[Kind, list[str]]:
    """Returns the names in a file; none if it is missing or damaged."""
    try:
        known = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError):
        known = {}
    listed = known if isinstance(known, dict) else {}
    names = {kind: listed.get(kind) for kind in KINDS}
    return {kind: [str(name) for name in found] if isinstance(found, list) else [] for kind, found in names.items()}
