"""The requirements of [bootstrap]: its packages, those that are installed here, and those that a project of uv locks.

The nodes get a project's packages exactly as locked. Nothing of it runs here.
"""

import json
import os
import shlex
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from bootstrap.environment.requirements import (
    PYPROJECT,
    WHEEL_URL,
    Requirements,
    allows,
    check_line,
    find_exact,
    find_name,
    is_git,
    join_lines,
    parse_project,
    read_packages,
)
from bootstrap.environment.uv import UvError, run_uv
from foundation.errors import ConfigError
from foundation.files import read_bounded
from foundation.user_folders import cache_folder

HERE = "here"
NOT_FROM_HERE = ("mxnet-cluster", "ec2-sandbox", "pip", "setuptools", "wheel")
LOCK = "uv.lock"
LOCK_MOST_BYTES = 16 << 20
# The code of the project and of its workspace reaches the nodes as the user's own files (transfer/sync.py).
EXPORT = ("export", "--no-dev", "--no-emit-workspace", "--format", "requirements-txt")
QUIETLY = ("--no-header", "--no-annotate", "--quiet", "--no-build", "--no-python-downloads", "--python")


def read_requirements(packages: Sequence[str], *, project: str, folder: Path) -> Requirements:
    """Reads [bootstrap] packages and project; `folder` is cluster.toml's. Raises ConfigError."""
    locked, python = read_project(project, folder=folder) if project else ((), "")
    if packages == HERE:
        lines, left = read_here()
        return Requirements(lines=lines, left=left, locked=locked, python=python)
    lines, limits = read_packages(packages, folder=folder)
    return Requirements(lines=lines, limits=limits, locked=locked, python=python)


def read_here() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The versions in the environment that the user works in, and the lines that nodes cannot use. Raises ConfigError.

    Projects that are installed as editable are in neither: jobs get their files.
    """
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    where = f'[bootstrap] packages = "{HERE}"'
    if not prefix:
        raise ConfigError(
            f"{where}: no environment is active", hint="source .venv/bin/activate, or: conda activate NAME"
        )
    try:
        lines = join_lines(run_uv(["pip", "freeze", "--quiet", "--python", prefix], folder=Path("/")))
        if (Path(prefix) / "conda-meta").is_dir():
            listed = run_uv(["pip", "list", "--format", "json", "--python", prefix], folder=Path("/"))
            exact = {find_name(one["name"]): f"{one['name']}=={one['version']}" for one in json.loads(listed)}
            lines = [exact[find_name(line)] if _is_built_elsewhere(line) else line for line in lines]
    except UvError as error:
        raise ConfigError(f"{where}: {prefix}{error}", hint="activate another environment") from None
    lines = [line for line in lines if find_name(line) not in ("", *NOT_FROM_HERE)]
    taken = tuple(line for line in lines if find_exact(line) or is_git(line) or WHEEL_URL.search(line))
    return taken, tuple(line for line in lines if line not in taken)


def _is_built_elsewhere(line: str) -> bool:
    """Whether a line names a folder that this machine lacks: for its packages, conda keeps that of their build."""
    name, _, path = line.partition(" @ file://")
    return bool(find_name(name) and path) and not Path(urllib.parse.unquote(path)).exists()


def read_project(name: str, *, folder: Path) -> tuple[tuple[str, ...], str]:
    """The locked packages of a project, and its requires-python. Raises ConfigError.

    uv compares the lock with pyproject.toml, unless that takes a build or another Python.
    """
    project_dir = folder / Path(name).expanduser()
    where, again = f'[bootstrap] project = "{name}"', f"cd {shlex.quote(str(project_dir))} && uv lock"
    path = project_dir / PYPROJECT
    try:
        about = parse_project(read_bounded(path).decode())
        python = str(about.get("requires-python", ""))
        compared = allows(python, sys.version_info[:2]) and "dependencies" not in about.get("dynamic", ())
        path = project_dir / LOCK
        read_bounded(path, most_bytes=LOCK_MOST_BYTES)
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: {path}: {why}", hint=f"set project to a uv project's folder; {again}") from None
    # So that uv does not start the Python of the project's .venv, nor write to a cache that its [tool.uv] names.
    own = {"UV_CACHE_DIR": str(cache_folder() / "uv")}
    environment = {**own, **os.environ, "UV_PROJECT_ENVIRONMENT": str(project_dir / ".not-there")}
    words = [*EXPORT, *QUIETLY, sys.executable, "--locked" if compared else "--frozen"]
    try:
        locked = tuple(join_lines(run_uv(words, folder=project_dir, environment=environment)))
    except UvError as error:
        raise ConfigError(f"{where}: {path} does not fit {PYPROJECT}{error}", hint=again) from None
    for line in locked:
        try:
            check_line(line)
        except ValueError as error:
            shown = line.partition(" --hash")[0][:80]
            raise ConfigError(f"{where}: {path}: {shown}: {error}", hint=f"change it, then: {again}") from None
    return locked, python
