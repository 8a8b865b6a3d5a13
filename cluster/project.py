"""Recognizes the user's project in a folder, for `cluster init`: its script, framework and packages.

The script is parsed, never run.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from bootstrap.environment.framework import is_of_framework
from bootstrap.environment.project import LOCK, LOCK_MOST_BYTES
from bootstrap.environment.requirements import PYPROJECT, find_exact, find_name, parse_project, read_packages
from foundation.errors import ConfigError
from foundation.files import read_bounded
from node.engines.engine import Framework
from train.job.program import find_modules

REQUIREMENTS = "requirements.txt"
SCRIPT = "train.py"
_NOT_SCRIPTS = re.compile(r"(setup|conftest|noxfile|__\w+__|test_.*|.*_test)\.py")
_FRAMEWORKS: dict[str, Framework] = {
    **dict.fromkeys(("torch", "torchvision", "lightning", "pytorch-lightning", "accelerate"), "pytorch"),
    **dict.fromkeys(("mxnet", "gluoncv", "gluonnlp", "gluonts"), "mxnet"),
}
_LOCKED_NAME = re.compile(r'^name = "([A-Za-z0-9._-]+)"$', re.MULTILINE)


class OwnProject(Struct, frozen=True, kw_only=True):
    """The user's project. script: relative to its folder; None if it is not clear which one it is.

    framework: None if nothing names one; why: what names it, such as "train.py imports torch". version: the exact
    version of the framework that the packages name, such as "torch==2.13.0". packages, locked: the values for
    [bootstrap] packages, and whether [bootstrap] project fits.
    """

    script: str | None
    framework: Framework | None = None
    why: str = ""
    version: str | None = None
    packages: tuple[str, ...] = ()
    locked: bool = False


def find_project(folder: Path) -> OwnProject | None:
    """The project in a folder; None if there is none."""
    script = _find_script(folder)
    locked = (folder / LOCK).is_file() and (folder / PYPROJECT).is_file()
    packages, requirements = ((), ()) if locked else _find_packages(folder)
    if script is None and not packages and not locked:
        return None
    framework, why = _find_framework(folder, script, requirements, locked=locked)
    return OwnProject(
        script=script,
        framework=framework,
        why=why,
        version=_find_version(requirements, framework),
        packages=packages,
        locked=locked,
    )


def _find_script(folder: Path) -> str | None:
    """train.py, or the one script there, of those with a main part if there are any, that no other one imports.

    Without scripts there, the one train.py in its folders.
    """
    if (folder / SCRIPT).is_file():
        return SCRIPT
    scripts = [path for path in sorted(folder.glob("*.py")) if path.is_file() and not _NOT_SCRIPTS.fullmatch(path.name)]
    scripts = scripts or [*folder.glob(f"*/{SCRIPT}"), *folder.glob(f"src/*/{SCRIPT}")]
    scripts = [path for path in scripts if "__main__" in _read(path)] or scripts
    if len(scripts) > 1:
        imported = {name for path in scripts for name in find_modules(path, folder=folder).modules}
        scripts = [path for path in scripts if path.stem not in imported]
    names = [path.relative_to(folder).as_posix() for path in scripts]
    return names[0] if len(names) == 1 and names[0].isprintable() else None  # TOML cannot have a name that is not UTF-8


def _find_packages(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The entry of [bootstrap] packages, and the requirements that it means; `up` says what is wrong with them."""
    if (folder / REQUIREMENTS).is_file():
        entry = f"-r {REQUIREMENTS}"
    elif _names_dependencies(_read(folder / PYPROJECT)):
        entry = f"-r {PYPROJECT}"
    else:
        return (), ()
    with suppress(ConfigError):
        return (entry,), read_packages([entry], folder=folder)[0]
    return (entry,), ()


def _names_dependencies(pyproject: str) -> bool:
    try:
        return bool(parse_project(pyproject).get("dependencies"))
    except ValueError:
        return False


def _find_framework(
    folder: Path, script: str | None, requirements: Iterable[str], *, locked: bool
) -> tuple[Framework | None, str]:
    """The framework, and what names it. The script's own imports count first."""
    path = folder / (script or "")
    for module in find_modules(path, folder=path.parent).badmodules if script is not None else ():
        name = module.partition(".")[0]
        if (framework := _FRAMEWORKS.get(name.replace("_", "-"))) is not None:
            return framework, f"{script} imports {name}"
    named = [find_name(requirement) for requirement in requirements]
    if locked:
        named = _LOCKED_NAME.findall(_read(folder / LOCK))
    source = LOCK if locked else REQUIREMENTS if (folder / REQUIREMENTS).is_file() else PYPROJECT
    for name in named:
        framework = "mxnet" if is_of_framework(name, "mxnet") else _FRAMEWORKS.get(name)
        if framework is not None:
            return framework, f"{source} names {name}"
    return None, ""


def _find_version(requirements: Iterable[str], framework: Framework | None) -> str | None:
    """The framework's requirement, if it is exact. Pure."""
    named = (one for one in requirements if framework is not None and is_of_framework(one, framework))
    return next(filter(None, map(find_exact, named)), None)


def _read(path: Path) -> str:
    """A file's text; "" if it cannot be read."""
    try:
        return read_bounded(path, most_bytes=LOCK_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
