"""Advice for a job whose program imports a module that the nodes do not have."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

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


def advise(module: str, words: Sequence[str], *, project_dir: Path, packages: Sequence[str]) -> str:
    """The advice for a missing module, with text for the user to type in backticks.

    It depends on the files next to the first of the words that is a file of the project, and in cluster.toml's folder.
    words: the job's script, or its command. packages: those of [bootstrap].
    """
    top = module.partition(".")[0]
    program = next((project_dir / word for word in words if is_project_file(project_dir, word)), None)
    beside = project_dir if program is None else program.parent
    folders = (beside, project_dir)
    name = top[:LONGEST_NAME]
    folder = next((folder for folder in folders if _has_module(folder, name)), None) or _find_below(project_dir, name)
    if folder == beside:
        return (
            f"{module} is next to your program on this machine, but not on the nodes: name it in `[bootstrap] sync`, "
            "and check that neither .gitignore nor `[bootstrap] exclude` excludes it"
        )
    if folder is not None:
        path = os.path.relpath(folder, project_dir)
        where = "the folder of cluster.toml" if path == "." else f"{path}/"
        return (
            f"{module} is in {where} on this machine, where Python does not look for it: run `cluster train --env "
            f"PYTHONPATH={shlex.quote(path)} ...` in the folder of cluster.toml"
        )
    found = next((folder / name for folder in folders for name in REQUIREMENTS if (folder / name).is_file()), None)
    if found is None:
        package = PACKAGES.get(top, top)
        return f'{module} is not on the nodes: set `[bootstrap] packages = ["{package}"]`, then `cluster up`'
    requirements = os.path.relpath(found, project_dir)
    if f"-r {requirements}" in packages:
        return f"{module} is not on the nodes: add its package to {requirements}, then `cluster up`"
    return (
        f"{module} is not on the nodes: to install {requirements} there, set "
        f'`[bootstrap] packages = ["-r {requirements}"]`, then `cluster up`'
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
