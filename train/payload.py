"""The files that a job needs on every node: node-side code, the scripts that ship with us, the user's own script."""

from importlib.resources import files
from pathlib import Path

from bootstrap.tree import FileTree, read_tree
from provision.errors import ConfigError

NODE_DIR = "node"
SCRIPTS_DIR = "scripts"
USER_DIR = "user"


def shipped_scripts() -> list[str]:
    """The names of the training scripts that ship with this project."""
    return sorted(path.name for path in _package_dir(SCRIPTS_DIR).glob("train_*.py"))


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


def collect_files(script: str, *, project_dir: Path) -> tuple[FileTree, str]:
    """The tree for the nodes, and the path of `script` in it. Raises ConfigError, OSError."""
    own = find_script(script, project_dir=project_dir)
    content = read_tree(_package_dir(NODE_DIR), under=NODE_DIR)
    content |= read_tree(_package_dir(SCRIPTS_DIR), under=SCRIPTS_DIR)
    if own is None:
        return FileTree(content=content), f"{SCRIPTS_DIR}/{script}"
    content[f"{USER_DIR}/{own.name}"] = own.read_bytes()
    return FileTree(content=content), f"{USER_DIR}/{own.name}"


def _package_dir(name: str) -> Path:
    return Path(str(files("train").joinpath(name)))
