"""Advice for a job whose program imports a module that the nodes do not have."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train.job.payload import is_project_file

REQUIREMENTS = ("requirements.txt", "pyproject.toml")
PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose package has a different name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearby:
    """Files next to a job's program on this machine.

    modules: its own modules. requirements: the path of a requirements file from cluster.toml's folder, or None.
    is_used: whether [bootstrap] packages names that file.
    """

    modules: frozenset[str] = frozenset()
    requirements: str | None = None
    is_used: bool = False


def find_nearby(words: Sequence[str], *, project_dir: Path, packages: Sequence[str]) -> Nearby:
    """Searches next to the first of the words that is a file of the project, and in cluster.toml's folder.

    words: the job's script, or its command. packages: those of [bootstrap].
    """
    program = next((project_dir / word for word in words if is_project_file(project_dir, word)), None)
    folders = [*([program.parent] if program is not None else []), project_dir]
    modules = frozenset(path.stem for path in folders[0].iterdir() if path.suffix == ".py" or _is_package(path))
    found = next((folder / name for folder in folders for name in REQUIREMENTS if (folder / name).is_file()), None)
    if found is None:
        return Nearby(modules=modules)
    name = os.path.relpath(found, project_dir)
    return Nearby(modules=modules, requirements=name, is_used=f"-r {name}" in packages)


def _is_package(path: Path) -> bool:
    """Whether a folder has Python files, if only in its own folders; not the runs that wandb keeps in wandb/."""
    return path.is_dir() and any(any(path.glob(form)) for form in ("*.py", "*/*.py"))


def advise(module: str, nearby: Nearby) -> str:
    """The advice for a missing module, with text for the user to type in backticks. Pure."""
    top = module.partition(".")[0]
    package = PACKAGES.get(top, top)
    if top in nearby.modules:
        return (
            f"{module} is next to your program on this machine, but not on the nodes: name it in `[bootstrap] sync`, "
            "and check that neither .gitignore nor `[bootstrap] exclude` excludes it"
        )
    if nearby.requirements is None:
        return f'{module} is not on the nodes: set `[bootstrap] packages = ["{package}"]`, then `cluster up`'
    if nearby.is_used:
        return f"{module} is not on the nodes: add its package to {nearby.requirements}, then `cluster up`"
    return (
        f"{module} is not on the nodes: to install {nearby.requirements} there, set "
        f'`[bootstrap] packages = ["-r {nearby.requirements}"]`, then `cluster up`'
    )
