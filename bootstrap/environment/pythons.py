"""Chooses the Python of a node's environment; packs one for nodes whose image has no suitable Python.

The packed ones are Astral's builds (https://gregoryszorc.com/docs/python-build-standalone/), which run in any folder.
uv's own settings say where it fetches them: UV_PYTHON_INSTALL_MIRROR, UV_PYTHON_DOWNLOADS_JSON_URL.
"""

import gzip
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile, fetch_once
from bootstrap.ssh.explain import render_last_lines
from foundation.errors import ClusterError
from foundation.progress import Report
from provision.oracle.gpus import Version, show

# MXNet's wheels are pure ctypes; obstore, which the nodes' programs use, begins at Python 3.9. NumPy 1.26, the last
# that MXNet can be made to work with (_cluster_compat.py puts np.bool and its kin back), has wheels up to 3.12; with
# NumPy 2 `import mxnet` fails: np.PZERO is gone.
OLDEST_PYTHON = (3, 9)
NEWEST_PYTHON = (3, 12)
# The newest for which NumPy has wheels that MXNet takes as they are.
MANAGED_PYTHON = (3, 11)
MANAGED_GLIBC = (2, 17)
"""The oldest that uv's Pythons for Linux run on: https://gregoryszorc.com/docs/python-build-standalone/main/running.html"""
PREFIX, SUFFIX = "python-", ".tar.gz"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPython:
    """`path` is absolute on the node; None for a packed Python that this machine sends.

    named: the user named this path.
    """

    version: Version
    path: str | None
    named: bool = False


def choose_python(facts: NodeFacts, *, setting: str, node: str) -> ChosenPython:
    """Choose for one node; `setting` is [bootstrap] python: "auto", a path or a version. Pure.

    Raises ClusterError when the Python that the user named does not work, or MXNet does not work with it.
    """
    if setting.startswith("/"):
        return _named(facts, setting, node=node)
    if setting == "auto":
        found = next((python for python in facts.pythons if is_fit(python)), None)
        version = MANAGED_PYTHON
    else:
        major, _, minor = setting.partition(".")
        version = (int(major), int(minor))
        found = next((python for python in facts.pythons if python.version == version), None)
    if found is not None:
        return ChosenPython(version=found.version, path=found.path)
    if facts.glibc < MANAGED_GLIBC:
        raise ClusterError(
            f"{node}: it has no Python {_wanted(setting)}, and the one that would be brought along needs "
            f"glibc {show(MANAGED_GLIBC)}; there it is {show(facts.glibc)}",
            hint="take an image that has one ([provision] ami)",
        )
    return ChosenPython(version=version, path=None)


def is_fit(python: FoundPython) -> bool:
    """Whether MXNet can be set up on a Python. Pure."""
    return OLDEST_PYTHON <= python.version <= NEWEST_PYTHON


def _named(facts: NodeFacts, path: str, *, node: str) -> ChosenPython:
    found = facts.configured
    if found is None:
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}": no Python works there',
            hint='set python = "auto", or a version such as "3.11", which is brought along where the image has none',
        )
    if not is_fit(found):
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}" is Python {show(found.version)}; MXNet works with 3.9 to 3.12',
            hint='set python = "auto", or another Python of the nodes',
        )
    return ChosenPython(version=found.version, path=found.path, named=True)


def _wanted(setting: str) -> str:
    return "3.9 to 3.12" if setting == "auto" else setting


def fetch_python(version: Version, *, machine: str, cache: Path, report: Report) -> BundleFile:
    """The packed Python, from the cache or by uv. In it, `bin/` and `lib/` are at the top.

    Raises ClusterError with uv's own words.
    """
    key = f"cpython-{show(version)}-linux-{machine}-gnu"

    def fetch(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as temporary:
            installed = _install(key, Path(temporary))
            pack(installed, directory / f"{PREFIX}{installed.name.removeprefix('cpython-')}{SUFFIX}")

    what = f"fetching Python {show(version)} for the nodes"
    (file,) = fetch_once(cache, f"pythons/{key}", fetch, what=what, report=report)
    return file


def is_python(file: BundleFile) -> bool:
    """Whether a file of a bundle is such a Python. Pure."""
    return file.name.startswith(PREFIX) and file.name.endswith(SUFFIX)


def _install(key: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "uv", "python", "install", "--no-progress", "--no-bin"]
    result = subprocess.run(
        [*command, "--install-dir", str(directory), key], capture_output=True, text=True, check=False
    )
    found = [path for path in directory.glob("cpython-*") if path.is_dir() and not path.is_symlink()]
    if result.returncode == 0 and len(found) == 1:
        return found[0]
    said = render_last_lines([line for line in result.stderr.splitlines() if line.strip()])
    raise ClusterError(
        f"uv could not fetch a Python for the nodes: {key}{said}",
        hint="check that this machine reaches where uv has its Pythons from (UV_PYTHON_INSTALL_MIRROR says another "
        "place), or take an image with a Python 3.9 to 3.12",
    )


def pack(folder: Path, destination: Path) -> None:
    """Write a folder as .tar.gz, the same bytes for the same content. Raises OSError."""
    with (
        destination.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_dir():  # files bring their folders
                _add(archive, path, path.relative_to(folder).as_posix())


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(entry)
        return
    status = path.stat()
    entry.size = status.st_size
    entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
    with path.open("rb") as stream:
        archive.addfile(entry, stream)
