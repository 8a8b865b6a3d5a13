"""Advice for a job whose program does not find a file on the nodes that is on this machine."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bootstrap.transfer.sync import find_left_out

_WORK = re.compile(r"/.*?/\.cluster/jobs/[^/]+/work/")
"""The folder on a node where a job runs (node/job_folder.py)."""


def explain_missing(
    path: str, *, project_dir: Path, sync: Sequence[str] | Literal["auto"], exclude: Sequence[str]
) -> str | None:
    """The advice for a path that a program did not find, with text for the user to type in backticks.

    None for a path outside of the job's folder, and for one that is sent. sync, exclude: those of [bootstrap].
    """
    if "://" in path:
        return None
    path = os.path.normpath(_WORK.sub("", path, count=1))
    folder = str(Path(path).parent)
    if path.startswith(("/", "..")):
        return None
    if _exists(project_dir / path):
        found = _find(path, project_dir, sync, exclude)
        return None if found is None else _advise(path, *found, project_dir=project_dir, exclude=exclude)
    if folder != "." and _exists(project_dir / folder) and _find(folder, project_dir, sync, exclude) is not None:
        return f"the folder {folder} is not sent to the nodes: create it in the program, with os.makedirs"
    return f"{path} exists neither on the nodes nor in the folder of cluster.toml"


def _advise(path: str, left_out: str, why: str, *, project_dir: Path, exclude: Sequence[str]) -> str:
    """why: as _find returns it."""
    shown = f"{left_out}/" if (project_dir / left_out).is_dir() else left_out
    remedy = f'add `"!{shown}"` to `[bootstrap] exclude`' if exclude else f'set `[bootstrap] exclude = ["!{shown}"]`'
    reasons = {
        "never": f"{shown} is never sent: copy or rename it",
        "sync": "name it or its folder in `[bootstrap] sync`",
        "exclude": f"`[bootstrap] exclude` leaves {shown} out: change it",
        "gitignore": f".gitignore leaves {shown} out: to send it, {remedy}",
        "secret": f"it may have a secret: to send it, {remedy}",
    }
    return f"{path} is on this machine, but not on the nodes: {reasons[why]}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _find(
    path: str, project_dir: Path, sync: Sequence[str] | Literal["auto"], exclude: Sequence[str]
) -> tuple[str, str] | None:
    """The path or the folder above it that is not sent, and why; None if it is sent."""
    if sync == "auto":
        return find_left_out(path, project_dir=project_dir, exclude=exclude)
    entries = [os.path.normpath(entry) for entry in sync]
    is_named = any(entry in (".", path) or path.startswith(f"{entry}/") for entry in entries)
    return None if is_named else (path, "sync")
