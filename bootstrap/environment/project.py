"""[bootstrap] project: a project of uv, whose packages the nodes get exactly as locked. Nothing of it runs here."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bootstrap.environment.requirements import (
    PYPROJECT,
    Requirements,
    allows,
    check_line,
    join_lines,
    parse_project,
    read_packages,
)
from bootstrap.environment.uv import UvError, run_uv
from foundation.errors import ConfigError
from foundation.files import read_bounded

LOCK = "uv.lock"
LOCK_MOST_BYTES = 16 << 20
# The code of the project and of its workspace reaches the nodes as the user's own files (transfer/sync.py).
EXPORT = ("export", "--no-dev", "--no-emit-workspace", "--format", "requirements-txt")
QUIETLY = ("--no-header", "--no-annotate", "--quiet", "--no-build", "--no-python-downloads", "--python")


def read_requirements(entries: Sequence[str], *, project: str, folder: Path) -> Requirements:
    """Reads [bootstrap] packages and project; `folder` is cluster.toml's. Raises ConfigError."""
    locked, python = read_project(project, folder=folder) if project else ((), "")
    lines, limits = read_packages(entries, folder=folder)
    return Requirements(lines=lines, limits=limits, locked=locked, python=python)


def read_project(name: str, *, folder: Path) -> tuple[tuple[str, ...], str]:
    """The locked packages of a project, and its requires-python. Raises ConfigError.

    uv compares the lock with pyproject.toml, unless that takes a build or another Python.
    """
    place = folder / Path(name).expanduser()
    where, again = f'[bootstrap] project = "{name}"', f"cd {shlex.quote(str(place))} && uv lock"
    path = place / PYPROJECT
    try:
        about = parse_project(read_bounded(path).decode())
        python = str(about.get("requires-python", ""))
        compared = allows(python, sys.version_info[:2]) and "dependencies" not in about.get("dynamic", ())
        path = place / LOCK
        read_bounded(path, most_bytes=LOCK_MOST_BYTES)
    except (OSError, ValueError, TypeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: {path}: {said}", hint=f"set project to a uv project's folder; {again}") from None
    # So that uv does not start the Python of the project's .venv.
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(place / ".not-there")}
    words = [*EXPORT, *QUIETLY, sys.executable, "--locked" if compared else "--frozen"]
    try:
        locked = tuple(join_lines(run_uv(words, folder=place, environment=environment)))
    except UvError as error:
        raise ConfigError(f"{where}: {path} does not fit {PYPROJECT}{error}", hint=again) from None
    for line in locked:
        try:
            check_line(line)
        except ValueError as error:
            shown = line.partition(" --hash")[0][:80]
            raise ConfigError(f"{where}: {path}: {shown}: {error}", hint=f"change it, then: {again}") from None
    return locked, python
