"""The Pythons of this machine: what runs on the nodes runs on all of them."""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

NODE_FOLDERS = tuple(Path(__file__).parents[2] / package / "node" for package in ("train", "bootstrap"))
VERSIONS = tuple(f"3.{minor}" for minor in range(6, 14))
# Where pyenv and uv keep them, and where a distribution or an administrator does.
PLACES = (".pyenv/versions/{0}.*/bin", ".local/share/uv/python/cpython-{0}*/bin")


@functools.cache
def find_python(version: str) -> str | None:
    """The path of a Python such as "3.6" itself; None where this machine has none that works."""
    for candidate in _candidates(version):
        told = subprocess.run(
            [candidate, "-c", "import sys; print(sys.executable, *sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        path, _, found = told.stdout.strip().partition(" ")
        if told.returncode == 0 and found.replace(" ", ".") == version:
            return path
    return None


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    for place in PLACES:
        yield from map(str, sorted(Path.home().glob(f"{place.format(version)}/{name}")))
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin"])
    found = shutil.which(name, path=path)
    if found is not None:
        yield found
