"""The user's files that a job needs on every node."""

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from bootstrap.runtime.code import SCRIPTS_DIR, find_part
from bootstrap.transfer.sync import SyncFiles, find_below, find_files, read_sync_files
from bootstrap.transfer.tree import Tree
from foundation.errors import ConfigError
from foundation.progress import Event, Report

Approve = Callable[[tuple[Path, ...], SyncFiles], None]
"""Called with the folders that the files are in, and the files; raises to refuse."""


class Payload(Struct, frozen=True, kw_only=True):
    """The user's files of a job. script: a path in their tree if is_own, otherwise in our code.

    project: the user's script and [bootstrap] sync, at their paths below the folder of
    cluster.toml; None for no such files.
    """

    project: Tree | None
    script: str
    is_own: bool


def shipped_scripts() -> list[str]:
    """The names of the training scripts that ship with this project."""
    return sorted(path.name for path in find_part(SCRIPTS_DIR).glob("train_*.py"))


def find_script(script: str, *, project_dir: Path) -> Path | None:
    """The user's own script file, or None if `script` names a shipped one. Raises ConfigError."""
    path = project_dir / script
    if path.is_file():
        return path
    if script in shipped_scripts():
        return None
    if path.is_dir():
        raise ConfigError(
            f'train.script = "{script}": {path} is a folder, not a script',
            hint=f'name a file in it, such as script = "{script.rstrip("/")}/{find_likely(path)}"',
        )
    raise ConfigError(
        f'train.script = "{script}": no such file in {project_dir}, and no such script ships with cluster '
        f"(those are {', '.join(shipped_scripts())})",
        hint="correct [train] script in cluster.toml, then run the command again",
    )


def find_likely(folder: Path) -> str:
    """The name of the script in a folder that the user most likely means."""
    names = sorted(path.name for path in folder.glob("*.py"))
    return next((name for word in ("train", "main", "") for name in names if word in name), "train.py")


def collect_trees(
    script: str,
    *,
    sync: Sequence[str] | Literal["auto"],
    exclude: Sequence[str],
    project_dir: Path,
    report: Report,
    command: Sequence[str] = (),
    subfolder: str = "",
    approve: Approve = lambda _folders, _found: None,
    settings: Collection[Path] = (),
    private: Path | None = None,
) -> Payload:
    """Reads all files that the nodes get besides the library. project_dir: the folder of cluster.toml.

    A script from outside that folder gets its base name as its path, and ignores `exclude`. command: the command that
    runs instead of the script, if any, in `subfolder` of project_dir. approve: called before the files are read.
    settings: files with the settings of this command, which may contain secrets: sync = "auto" leaves them out.
    private: a file that is not sent, because it contains a secret.
    Raises ConfigError, ClusterError as bootstrap.transfer.sync does, and what `approve` raises.
    """
    own = find_script(script, project_dir=project_dir)
    folders: tuple[str, ...] = (".",)
    if sync == "auto":
        folders, named = choose_folders(own, command, subfolder=subfolder, project_dir=project_dir)
        found = find_below(folders, named=named, project_dir=project_dir, exclude=exclude)
    else:
        found = find_files(project_dir, sync=sync, exclude=exclude)
    if private is not None:
        _leave_out(found, private.resolve(), report)
    if sync == "auto":
        left_out = {path.resolve() for path in settings}
        found.files = {path: file for path, file in found.files.items() if file[0].resolve() not in left_out}
    path = f"{SCRIPTS_DIR}/{script}" if own is None else _add_script(found, own, project_dir)
    beside = (own.parent,) if own is not None and not folders else (project_dir,)
    approve(tuple(project_dir / folder for folder in folders) or beside, found)
    project = None
    if found.files or found.folders:
        project = read_sync_files(found, project_dir=project_dir, report=report)
    return Payload(project=project, script=path, is_own=own is not None)


def _leave_out(found: SyncFiles, private: Path, report: Report) -> None:
    """Leaves out a file, and links to it."""
    kept = {path: file for path, file in found.files.items() if file[0].resolve() != private}
    if len(kept) < len(found.files):
        report(Event(kind="info", what=f"{private.name} is not sent: its [notify] webhook is a secret"))
        found.files = kept


def choose_folders(
    script: Path | None, command: Sequence[str], *, subfolder: str, project_dir: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What sync = "auto" sends: folders below project_dir, and the files in them that are named.

    A command may use any file of the project: its modules, its folders, files that a shell opens. A script gets its own
    folder, for its modules, and the one that it runs in, where its arguments' paths start: project_dir, or `subfolder`
    of it. A script that ships with this project gets none, nor does one from elsewhere.
    """
    root = project_dir.resolve()
    if command:
        words = [word for text in command for word in (text, *text.split())]
        paths = [root / subfolder / word for word in words if is_project_file(root, str(Path(subfolder, word)))]
        return (".",), tuple(dict.fromkeys(os.path.relpath(path, root) for path in paths))
    if script is None or not script.resolve().is_relative_to(root):
        return (), ()
    path = Path(os.path.relpath(script, project_dir))
    folders = [path.parent, *([Path(subfolder)] if (root / subfolder).is_dir() else [])]
    outermost = [one for one in folders if not any(one != other and one.is_relative_to(other) for other in folders)]
    return tuple(dict.fromkeys(map(str, outermost))), (str(path),)


def is_project_file(folder: Path, word: str) -> bool:
    """Whether a word of a command is the path of a file below a folder: a word can be anything, even a program."""
    try:
        path = Path(os.path.normpath(folder / word))
        return bool(word) and path.is_relative_to(folder) and path.is_file()
    except (OSError, ValueError):
        return False


def _add_script(found: SyncFiles, script: Path, project_dir: Path) -> str:
    """Adds the user's script to the files; returns its path in the tree. Raises ConfigError."""
    path = os.path.relpath(script, project_dir)
    if path.startswith("../"):
        path = script.name
    source = script.resolve()
    there = found.files.get(path)
    taken = path in found.folders or any(other.startswith(f"{path}/") for other in found.files)
    if taken or (there is not None and there[0] != source):
        raise ConfigError(
            f'train.script = "{script}": [bootstrap] sync sends another {path} to the same path',
            hint="rename one of them, or move the script into the folder of cluster.toml",
        )
    found.files[path] = (source, source.stat())
    return path
