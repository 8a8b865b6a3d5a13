"""Finds cluster.toml, and the names of nodes and jobs that recent commands saw. Fast to import, for completion."""

import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from foundation.errors import ClusterError
from foundation.files import write_whole
from foundation.user_folders import cache_folder

Kind = Literal["nodes", "jobs"]
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
    return _read(_file_of(config_path)).get(kind, [])


def remember_names(config_path: Path, kind: Kind, names: Sequence[str]) -> None:
    """Stores names for completion. A failure, such as a full disk, is ignored."""
    with suppress(OSError, ClusterError):
        path = _file_of(config_path)
        known = _read(path)
        kept = list(dict.fromkeys(names))[:MOST_NAMES]
        if known.get(kind, []) != kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({**known, kind: kept}).encode())


def _file_of(config_path: Path) -> Path:
    digest = zlib.crc32(os.fsencode(config_path.resolve()))
    return cache_folder() / "names" / f"{digest:08x}.json"


def _read(path: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
