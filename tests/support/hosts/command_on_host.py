"""Installs the command `cluster` on a sandbox host for a user, as on the first host of an allocation."""

import shutil
import subprocess
import sys
from pathlib import Path

from project import CLUSTER, REPOSITORY

PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"
"""Hosts share the machine's /usr, but nothing else that a Python installed elsewhere may need."""
NOT_COPIED = ("./.git", "./tests", "./build", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def may_place_command() -> bool:
    """Whether hosts have a Python that can run this environment, and do not share this repository's folder."""
    return Path(PYTHON).exists() and REPOSITORY.parts[1] not in {"usr", "opt"}


def place_command(root: Path, home: Path, *, cache: Path) -> str:
    """Copies this program and its environment to a host, and the cache of wheels to a user's home; returns the command.

    root, home: the host's / and the user's home, seen from this machine. The program has the same path as here.
    """
    there = root / REPOSITORY.relative_to("/")
    there.mkdir(parents=True)
    leave_out = [f"--exclude={name}" for name in NOT_COPIED]
    with subprocess.Popen(["tar", "-C", REPOSITORY, *leave_out, "-cf", "-", "."], stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-C", there, "-xf", "-"], stdin=packing.stdout, check=True)
    environment = there / Path(CLUSTER).parents[1].relative_to(REPOSITORY)
    for name in ("python", "python3"):
        (environment / "bin" / name).unlink(missing_ok=True)
    (environment / "bin" / "python").symlink_to(PYTHON)
    (environment / "bin" / "python3").symlink_to("python")
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    subprocess.run(["chmod", "-R", "a+rX", root / REPOSITORY.parts[1]], check=True)
    shutil.copytree(cache, home / ".cache" / "cluster")
    own(home, ".cache")
    return CLUSTER


def own(home: Path, name: str) -> None:
    """Makes a user the owner of a file or folder in their home, including its content."""
    owner = home.stat()
    subprocess.run(["chown", "-Rh", f"{owner.st_uid}:{owner.st_gid}", home / name], check=True)
