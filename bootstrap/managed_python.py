"""A Python for nodes whose image has none that will do: fetched by uv on the user's machine, packed as one file.

They are Astral's builds (https://gregoryszorc.com/docs/python-build-standalone/), which run wherever they are put. uv
takes them from where its own settings say: UV_PYTHON_INSTALL_MIRROR, UV_PYTHON_DOWNLOADS_JSON_URL.
"""

import gzip
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from bootstrap.explain import render_last_lines
from bootstrap.shelf import BundleFile, fetch_once
from provision.errors import ClusterError
from provision.oracle.gpus import Version, show
from provision.progress import Report

PREFIX, SUFFIX = "python-", ".tar.gz"


def fetch_python(version: Version, *, machine: str, cache: Path, report: Report) -> BundleFile:
    """The packed Python, from the cache or by uv. In it, `bin/` and `lib/` are at the top.

    Raises ClusterError with uv's own words.
    """
    key = f"cpython-{show(version)}-linux-{machine}-gnu"

    def fetch(directory: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetching-") as temporary:
            installed = _install(key, Path(temporary))
            pack(installed, directory / f"{PREFIX}{installed.name.removeprefix('cpython-')}{SUFFIX}")
        return {"python": key}

    what = f"fetching Python {show(version)} for the nodes"
    (file,) = fetch_once(cache / "pythons" / key, fetch, what=what, report=report)
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
        "place), or take an image with a Python 3.8 to 3.12",
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
