"""[bootstrap] project: a project of uv, whose packages the nodes get exactly as locked.

uv runs on the user's machine, and prints the versions in uv.lock with their hashes as a requirements file. Then the
packages are fetched and installed like others. Nothing of the project runs here. `uv export --locked` would build
dynamic metadata, and start the Python in the project's .venv.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from bootstrap.environment.requirements import (
    Wanted,
    canonical_name,
    join_lines,
    parse_line,
    parse_project,
    parse_requirement,
)
from bootstrap.ssh.explain import render_last_lines
from foundation.decode import convert
from foundation.errors import ConfigError
from foundation.files import read_bounded
from foundation.toml import MOST_BYTES, parse_toml
from provision.oracle.tables import Version, show

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

T = TypeVar("T")
LOCK, PYPROJECT = "uv.lock", "pyproject.toml"
# The code of the project and of its workspace reaches the nodes as the user's own files (transfer/sync.py).
EXPORT = ("export", "--frozen", "--no-config", "--no-dev", "--no-emit-workspace", "--format", "requirements-txt")
LOCK_MOST_BYTES = 16 << 20
OWN_PACKAGE = re.compile(r'^source = \{ (virtual|editable|directory) = "\." \}$', re.MULTILINE)
PACKAGE = "\n[[package]]\n"
QUIET = ("--no-header", "--no-annotate", "--no-progress", "--color", "never")


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedProject:
    """The locked packages of a project. python: the project's requires-python, "" if it has none."""

    packages: tuple[Wanted, ...] = ()
    python: str = ""

    def allows(self, version: Version) -> bool:
        """Whether the lock covers a version of Python. Pure."""
        return _allows(self.python, version)


class _Project(Struct, frozen=True, rename="kebab"):
    """[project] in pyproject.toml."""

    name: str = ""
    requires_python: str = ""
    dependencies: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()


class _Need(Struct, frozen=True):
    """A dependency of pyproject.toml in uv.lock. For one that is not from an index, uv leaves out the specifier."""

    name: str
    specifier: str = ""
    marker: str = ""
    directory: Any = None
    editable: Any = None
    git: Any = None
    path: Any = None
    url: Any = None
    virtual: Any = None

    @property
    def is_extra(self) -> bool:
        return "extra ==" in self.marker

    @property
    def is_elsewhere(self) -> bool:
        return any((self.directory, self.editable, self.git, self.path, self.url, self.virtual))


class _Metadata(Struct, frozen=True, rename="kebab"):
    requires_dist: tuple[_Need, ...] = ()


class _Package(Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _Lock(Struct, frozen=True, rename="kebab"):
    """uv.lock: the head of the file, and the project's own package."""

    requires_python: str = ""
    manifest: dict[str, Any] = {}
    package: tuple[_Package, ...] = ()


def read_project(name: str, *, folder: Path) -> LockedProject:
    """Reads the packages of [bootstrap] project; `folder` is cluster.toml's. `name` is "" without a project.

    Raises ConfigError for a project without a lock file, or with a lock file that does not fit pyproject.toml.
    """
    if not name:
        return LockedProject()
    place = folder / Path(name).expanduser()
    again = f"cd {shlex.quote(str(place))} && uv lock"
    where = f'[bootstrap] project = "{name}": {place}'
    no_folder = f"set project to a folder with {PYPROJECT} and {LOCK}"
    about, _ = _read(place / PYPROJECT, parse_project, where=where, hint=no_folder, most_bytes=MOST_BYTES)
    try:
        project = convert(about, _Project)
        _allows(project.requires_python, (3, 0))
    except ValueError as error:
        raise ConfigError(f"{where}/{PYPROJECT}: {error}", hint=no_folder) from None
    is_current, lock = _read(place / LOCK, partial(_fits, project), where=where, hint=again, most_bytes=LOCK_MOST_BYTES)
    if not is_current:
        raise ConfigError(f'[bootstrap] project = "{name}": {LOCK} does not fit {PYPROJECT}', hint=again)
    return LockedProject(
        packages=parse_export(_export(project, lock, where=where, again=again), name=name),
        python=project.requires_python,
    )


def _read(path: Path, parse: Callable[[str], T], *, where: str, hint: str, most_bytes: int) -> tuple[T, str]:
    """A file as `parse` understands it, and its text. Raises ConfigError."""
    try:
        text = read_bounded(path, most_bytes=most_bytes).decode()
        return parse(text), text
    except FileNotFoundError:
        raise ConfigError(f"{where} has no {path.name}", hint=hint) from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}/{path.name}: {said}", hint=hint) from None


def _export(project: _Project, lock: str, *, where: str, again: str) -> str:
    """The locked packages as a requirements file. Raises ConfigError.

    uv runs in a folder of its own: it neither sees the project's .venv, .python-version and uv.toml, nor those above.
    """
    about = f'[project]\nname = {json.dumps(project.name)}\nversion = "0"\n' if project.name else ""
    with tempfile.TemporaryDirectory(prefix="cluster-lock-") as temporary:
        alone = Path(temporary)
        (alone / PYPROJECT).write_text(f"{about}[tool.uv.workspace]\n")  # the latter ends the search above
        (alone / LOCK).write_text(lock)
        command = [sys.executable, "-P", "-m", "uv", *EXPORT, *QUIET, "--project", temporary]
        done = subprocess.run(command, cwd=alone, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = render_last_lines([line for line in done.stderr.splitlines() if line.strip()])
        raise ConfigError(f"{where}: uv cannot read {LOCK}{lines}", hint=again)
    return done.stdout


def _fits(project: _Project, lock: str) -> bool:
    """Whether a lock file has the dependencies and the Python of a project. Pure. Raises ValueError.

    Does not compare dependencies that only a build could list (`dynamic`).
    """
    # Only a few lines count; to parse all of a large file would take a second.
    head, *packages = lock.split(PACKAGE)
    own = next((text for text in packages if OWN_PACKAGE.search(text)), None)
    locked = convert(parse_toml(head if own is None else f"{head}{PACKAGE}{own}"), _Lock)
    if project.requires_python and "members" not in locked.manifest:  # a workspace has the Python of all its members
        pythons = (project.requires_python, locked.requires_python)
        if any(len({_allows(each, (3, minor)) for each in pythons}) > 1 for minor in range(6, 30)):
            return False
    if "dependencies" in project.dynamic:
        return True
    needs = [need for package in locked.package for need in package.metadata.requires_dist if not need.is_extra]
    unversioned = {need.name for need in needs if need.is_elsewhere}
    asked = {_shorten(each, unversioned) for each in project.dependencies}
    return asked == {_shorten(f"{need.name}{need.specifier}", unversioned) for need in needs}


def _shorten(requirement: str, unversioned: Collection[str]) -> tuple[str, "SpecifierSet"]:
    found = parse_requirement(requirement.partition(" @ ")[0])
    name = canonical_name(found.name)
    return name, parse_requirement(name).specifier if name in unversioned else found.specifier


def _allows(python: str, version: Version) -> bool:
    """Whether requires-python allows a version of Python; "" allows all. Raises ValueError."""
    if not python:
        return True
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - slow to import, and few use a project

    return any(SpecifierSet(python).contains(f"{show(version)}.{patch}") for patch in (0, 99))


def parse_export(text: str, *, name: str) -> tuple[Wanted, ...]:
    """The packages in the output of `uv export`. Pure. Raises ConfigError for a package that is not from an index."""
    found: list[Wanted] = []
    place = f"{name}/{LOCK}" if name != "." else LOCK
    for _, line in join_lines(text):
        try:
            found.append(parse_line(line, place=place))
        except ValueError as error:
            shown = line.partition(" --hash")[0][:80]
            hint = "take this package from a package index, then: uv lock"
            raise ConfigError(f"{place}: {shown}: {error}", hint=hint) from None
    return tuple(found)


def check_against_lock(packages: Sequence[Wanted], locked: Sequence[Wanted]) -> None:
    """Compares [bootstrap] packages with a lock file. Pure. Raises ConfigError for a package that contradicts it."""
    versions = locked_versions(locked)
    for wanted in packages:
        requirement = parse_requirement(wanted.requirement)
        version = versions.get(canonical_name(wanted.requirement))
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            raise ConfigError(
                f"{wanted.place}: {wanted.requirement} contradicts [bootstrap] project, which locks version {version}",
                hint=f"remove it from {wanted.place}, or in the project's folder: uv add '{wanted.requirement}'",
            )


def locked_versions(locked: Sequence[Wanted]) -> dict[str, str]:
    """The version of each locked package, by normalized name. Pure.

    Leaves out packages that markers lock at several versions.
    """
    found: dict[str, set[str]] = {}
    for wanted in locked:
        pinned = {one.version for one in parse_requirement(wanted.requirement).specifier if one.operator == "=="}
        found.setdefault(canonical_name(wanted.requirement), set()).update(pinned)
    return {name: next(iter(versions)) for name, versions in found.items() if len(versions) == 1}
