"""The files that a job needs on every node: node-side code, the scripts that ship with us, the user's own script."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bootstrap.transfer.sync import Found, find_files, read_found
from bootstrap.transfer.tree import Tree, file_of_bytes, make_tree
from foundation.errors import ConfigError
from foundation.progress import Report
from train.job.defaults import find_program

SCRIPTS_DIR = "train/scripts"
"""Of the code tree, which has the same folders as this project."""
CODE = (
    "foundation/__init__.py",
    "foundation/decode.py",
    "foundation/file_lock.py",
    "foundation/thread_pool.py",
    "bootstrap/__init__.py",
    "bootstrap/node/process_tree.py",
    "bootstrap/node/setup_env.py",
    "train/__init__.py",
    "train/engines",
    "train/job/__init__.py",
    "train/job/protocol.py",
    "train/node",
    "train/scripts",
)
"""What the nodes get of this project: files, and folders with all Python files in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """The trees of a job. `script` is a path in the project tree if is_own, in the code tree if not.

    code: what this project brings along. project: the user's script and what [bootstrap] sync names, at the paths
    that they have below the folder of cluster.toml; None when there is nothing of the kind.
    """

    code: Tree
    project: Tree | None
    script: str
    is_own: bool


def shipped_scripts() -> list[str]:
    """The names of the training scripts that ship with this project."""
    return sorted(path.name for path in _find(SCRIPTS_DIR).glob("train_*.py"))


def find_script(script: str, *, project_dir: Path) -> Path | None:
    """The user's own script file, or None where `script` names a shipped one. Raises ConfigError."""
    path = project_dir / script
    if path.is_file():
        return path
    if script in shipped_scripts():
        return None
    raise ConfigError(
        f'train.script = "{script}": there is no such file in {project_dir}, nor does a script of that name ship '
        f"with this project (those are: {', '.join(shipped_scripts())})"
    )


def collect_trees(
    script: str, *, sync: Sequence[str], exclude: Sequence[str], project_dir: Path, report: Report
) -> Payload:
    """Read all that the nodes get beside the library; project_dir is the folder of cluster.toml.

    A script from outside of that folder lies at its base name. `exclude` does not count for it.
    Raises ConfigError, ClusterError as bootstrap.sync does.
    """
    own = find_script(script, project_dir=project_dir)
    found = find_files(project_dir, sync=sync, exclude=exclude)
    path = f"{SCRIPTS_DIR}/{script}" if own is None else _add_script(found, own, project_dir)
    project = None
    if found.files or found.folders:
        project = read_found(found, project_dir=project_dir, report=report)
    return Payload(code=_read_code(), project=project, script=path, is_own=own is not None)


def find_shadowed(script: str, *, project_dir: Path) -> str | None:
    """What to tell a user whose own script has the name of one that ships with this project; None for others."""
    if script not in shipped_scripts() or not (project_dir / script).is_file():
        return None
    return (
        f'train.script = "{script}": your own {project_dir / script} is run, and not the script of that name that '
        "ships with cluster (rename yours to run that one)"
    )


def read_program(script: str, *, command: Sequence[str], project_dir: Path) -> str:
    """The text of the user's own Python program that a job runs; "" where it is none, or not known.

    command: what is run in place of [train] script; empty where that is run.
    """
    path = project_dir / (find_program(command) or script)
    if path.suffix != ".py" or not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def code_digest() -> str:
    """The digest of what this version of the project brings along: the name of its folder on the nodes."""
    return _read_code().digest


def _add_script(found: Found, script: Path, project_dir: Path) -> str:
    """Put the user's script beside what was found; its path in the tree. Raises ConfigError."""
    path = os.path.relpath(script, project_dir)
    if path.startswith("../"):
        path = script.name
    place = script.resolve()
    there = found.files.get(path)
    taken = path in found.folders or any(other.startswith(f"{path}/") for other in found.files)
    if taken or (there is not None and there[0] != place):
        raise ConfigError(
            f'train.script = "{script}": [bootstrap] sync brings another {path} to the same place',
            hint="rename one of them, or put the script into the folder of cluster.toml",
        )
    found.files[path] = (place, place.stat())
    return path


def _read_code() -> Tree:
    content = {}
    for name in CODE:
        place = _find(name)
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            content[f"{name}/{path.relative_to(place).as_posix()}".removesuffix("/.")] = path.read_bytes()
    return make_tree(file_of_bytes(path, data) for path, data in content.items())


def _find(name: str) -> Path:
    """A file or folder of this project."""
    package, _, rest = name.partition("/")
    return Path(str(files(package).joinpath(rest)))
