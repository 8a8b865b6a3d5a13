"""The Pythons of this machine, and an environment with the real MXNet, made once."""

import functools
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from foundation.file_lock import locked

# Where pyenv and uv install Pythons.
PLACES = (".pyenv/versions/{0}.*/bin", ".local/share/uv/python/cpython-{0}*/bin")


@functools.cache
def find_python(version: str) -> str | None:
    """The path of a Python such as "3.6"; None if this machine has none that works."""
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


UV = str(Path(sys.executable).parent / "uv")
VERSION = "1.7.0.post2"
PACKAGES = ("numpy==1.23.5", "opencv-python-headless==4.11.0.86")
VERSIONS = ("3.11", "3.10", "3.9", "3.8")  # NumPy 1.23 has no wheels for later ones


def real_mxnet(version: str = VERSION) -> str:
    """The path of a Python that can import this mxnet, and cv2. Skips the test if there is none."""
    python = next(filter(None, map(find_python, VERSIONS)), None)
    if python is None:
        pytest.skip(f"MXNet needs one of Python {', '.join(VERSIONS)}")
    return make_once(f"mxnet-{version}", python, partial(uv_install, (f"mxnet=={version}", *PACKAGES)))


def uv_install(packages: Sequence[str], python: Path) -> None:
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *packages], check=True)


def make_once(name: str, python: str, install: Callable[[Path], None]) -> str:
    """The path of the Python of an environment, in which `install` installs packages."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cluster-tests"
    base.mkdir(parents=True, exist_ok=True)
    made = base / "-".join([name, *Path(python).resolve().name.split("python")[1:]])
    with locked(base / "lock"):
        if not (made / "complete").exists():
            subprocess.run([UV, "venv", "--quiet", "--clear", "--python", python, made], check=True)
            install(made / "bin" / "python")
            (made / "complete").touch()
    return str(made / "bin" / "python")


def run_mxnet(program: str, *words: str | Path, env: dict[str, str] | None = None) -> list[str]:
    """Runs a program with MXNet, imported as `mx`; returns the lines that it prints."""
    done = subprocess.run(
        [real_mxnet(), "-W", "ignore", "-c", "import sys\nimport mxnet as mx\n" + textwrap.dedent(program), *words],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
