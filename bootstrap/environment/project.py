"""[bootstrap] project: a project of uv, whose packages the nodes get exactly as locked.

uv runs on the user's machine. It checks that uv.lock fits pyproject.toml, and prints the locked versions with their
hashes as a requirements file. Then the packages are fetched and installed like others.
"""

import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.environment.requirements import Wanted, canonical_name, join_lines, parse_line, parse_requirement
from bootstrap.ssh.explain import render_last_lines
from foundation.errors import ConfigError
from provision.oracle.tables import Version, show

LOCK, PYPROJECT = "uv.lock", "pyproject.toml"
# The code of the project and of its workspace reaches the nodes as the user's own files (transfer/sync.py).
EXPORT = ("export", "--locked", "--no-dev", "--no-emit-workspace", "--format", "requirements-txt")
QUIET = ("--no-header", "--no-annotate", "--no-progress", "--color", "never")


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedProject:
    """The locked packages of a project. python: the project's requires-python, "" if it has none."""

    packages: tuple[Wanted, ...] = ()
    python: str = ""

    def allows(self, version: Version) -> bool:
        """Whether the lock covers a version of Python. Pure."""
        from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - slow to import, and few use a project

        return not self.python or any(
            SpecifierSet(self.python).contains(f"{show(version)}.{patch}") for patch in (0, 99)
        )


def read_project(name: str, *, folder: Path) -> LockedProject:
    """Reads the packages of [bootstrap] project; `folder` is cluster.toml's. `name` is "" without a project.

    Raises ConfigError for a project without a lock file, or with a lock file that does not fit pyproject.toml.
    """
    if not name:
        return LockedProject()
    place = folder / Path(name).expanduser()
    again = f"cd {shlex.quote(str(place))} && uv lock"
    for needed in (PYPROJECT, LOCK):
        if not (place / needed).is_file():
            hint = again if needed == LOCK else f"set project to a folder with {PYPROJECT} and {LOCK}"
            raise ConfigError(f'[bootstrap] project = "{name}": {place} has no {needed}', hint=hint)
    command = [sys.executable, "-P", "-m", "uv", *EXPORT, *QUIET, "--project", str(place)]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        said = done.stderr.strip()
        if "needs to be updated" in said:
            raise ConfigError(f'[bootstrap] project = "{name}": {LOCK} does not fit {PYPROJECT}', hint=again)
        lines = render_last_lines([line for line in said.splitlines() if line.strip()])
        raise ConfigError(f'[bootstrap] project = "{name}": uv cannot read {LOCK}{lines}', hint=again)
    return LockedProject(packages=parse_export(done.stdout, name=name), python=_read_python(place, name=name))


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


def _read_python(place: Path, *, name: str) -> str:
    try:
        project = tomllib.loads((place / PYPROJECT).read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f'[bootstrap] project = "{name}": {place / PYPROJECT}: {error}') from None
    return str(project.get("requires-python", ""))


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
