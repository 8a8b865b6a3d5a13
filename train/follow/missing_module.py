"""Advice for a job whose program imports a module that the nodes do not have."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from train.job.payload import is_project_file

LONGEST_NAME = 60  # characters of a module's name that count: a file's name has at most 255 bytes
BELOW = ("*/{}.py", "*/{}/__init__.py", "*/*/{}/__init__.py", "*/*/src/{}/__init__.py")
"""Where a project has modules that Python does not find by itself, such as src/ and packages/core/src/."""
REQUIREMENTS = ("requirements.txt", "pyproject.toml")
PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "hydra": "hydra-core",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
"""Modules whose package has a different name; some of these names belong to other packages."""


class Nearby(Struct, frozen=True, kw_only=True):
    """Files of the project on this machine, for a module that is missing on the nodes.

    folder: the project's folder that has a module of this name, from cluster.toml's; None if there is none. is_beside:
    whether that is the program's own folder, where Python looks for modules. requirements: the path of a requirements
    file from cluster.toml's folder, or None. is_used: whether [bootstrap] packages names that file.
    """

    folder: str | None = None
    is_beside: bool = False
    requirements: str | None = None
    is_used: bool = False


def find_nearby(module: str, words: Sequence[str], *, project_dir: Path, packages: Sequence[str]) -> Nearby:
    """Searches next to the first of the words that is a file of the project, and in cluster.toml's folder.

    words: the job's script, or its command. packages: those of [bootstrap].
    """
    program = next((project_dir / word for word in words if is_project_file(project_dir, word)), None)
    folders = [*([program.parent] if program is not None else []), project_dir]
    top = module.partition(".")[0][:LONGEST_NAME]
    folder = next((folder for folder in folders if _has_module(folder, top)), None) or _find_below(project_dir, top)
    found = next((folder / name for folder in folders for name in REQUIREMENTS if (folder / name).is_file()), None)
    name = os.path.relpath(found, project_dir) if found is not None else None
    return Nearby(
        folder=os.path.relpath(folder, project_dir) if folder is not None else None,
        is_beside=folder == folders[0],
        requirements=name,
        is_used=f"-r {name}" in packages,
    )


def _has_module(folder: Path, name: str) -> bool:
    """Whether a folder has a module, or a folder with Python files, if only in its own folders.

    Not the runs that wandb keeps in wandb/.
    """
    package = folder / name
    is_package = package.is_dir() and any(any(package.glob(form)) for form in ("*.py", "*/*.py"))
    return is_package or (folder / f"{name}.py").is_file()


def _find_below(folder: Path, name: str) -> Path | None:
    """A folder in this one, such as src, that has the module or package."""
    forms = (form.replace("*", "[!.]*").format(name) for form in BELOW)
    found = next((path for form in forms for path in sorted(folder.glob(form))), None)
    return found and (found.parent.parent if found.name == "__init__.py" else found.parent)


def advise(module: str, nearby: Nearby) -> str:
    """The advice for a missing module, with text for the user to type in backticks. Pure."""
    top = module.partition(".")[0]
    package = PACKAGES.get(top, top)
    if nearby.folder is not None and nearby.is_beside:
        return (
            f"{module} is next to your program on this machine, but not on the nodes: name it in `[bootstrap] sync`, "
            "and check that neither .gitignore nor `[bootstrap] exclude` excludes it"
        )
    if nearby.folder is not None:
        where = "the folder of cluster.toml" if nearby.folder == "." else f"{nearby.folder}/"
        return (
            f"{module} is in {where} on this machine, where Python does not look for it: run `cluster train --env "
            f"PYTHONPATH={shlex.quote(nearby.folder)} ...` in the folder of cluster.toml"
        )
    if nearby.requirements is None:
        return f'{module} is not on the nodes: set `[bootstrap] packages = ["{package}"]`, then `cluster up`'
    if nearby.is_used:
        return f"{module} is not on the nodes: add its package to {nearby.requirements}, then `cluster up`"
    return (
        f"{module} is not on the nodes: to install {nearby.requirements} there, set "
        f'`[bootstrap] packages = ["-r {nearby.requirements}"]`, then `cluster up`'
    )
