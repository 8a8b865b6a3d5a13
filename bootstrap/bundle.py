"""The wheels of the nodes' environment: fetched once on the user's machine, kept, and named by their content."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from bootstrap.wheels import WheelTarget, platform_tags
from provision.errors import ClusterError
from provision.progress import Event, Report

COMPAT_FILE = "_cluster_compat.py"
MANIFEST = "bundle.json"
LAST_LINES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleFile:
    """A file that nodes need; `sha256` in lower-case hexadecimal."""

    path: Path
    sha256: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The file's name; for a wheel it is part of its meaning."""
        return self.path.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """All files of one environment, in the order of their names. `digest` names the environment."""

    target: WheelTarget
    files: tuple[BundleFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over what decides how the environment turns out: the files and the Python version."""
        content = [self.target.python_version, [(file.name, file.sha256) for file in self.files]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def cache_dir() -> Path:
    """Where fetched wheels are kept: $XDG_CACHE_HOME/cluster, as the XDG Base Directory Specification has it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cluster"


def fetch_bundle(target: WheelTarget, *, cache: Path, report: Report) -> Bundle:
    """The bundle for a target: from the cache, or by pip from the package index that pip is set up to use.

    Whatever is killed in between leaves no half bundle, and a damaged one is fetched anew. Raises ClusterError with
    pip's own words.
    """
    requirements = (*target.requirements, f"uv=={version('uv')}")
    key_parts = [target.python_version, target.machine, target.glibc, requirements]
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:16]
    directory = cache / "bundles" / key
    with _locked(cache / "bundles" / f"{key}.lock"):
        wheels = _find_bundle(directory)
        if wheels is None:
            started = time.monotonic()
            what = f"fetching wheels for the nodes: {target.requirements[0]} and what it needs"
            report(Event(kind="start", what=what))
            wheels = _download(target, requirements, directory)
            report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
    return Bundle(target=target, files=(*wheels, _compat_file()))


def _find_bundle(directory: Path) -> tuple[BundleFile, ...] | None:
    """The wheels of a bundle in the cache; None where there is none, or files of it are gone or cut short.

    Their sizes are looked at, not their content: the nodes check that against the digests.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        wheels = tuple(
            BundleFile(path=directory / entry["name"], sha256=entry["sha256"], size_bytes=entry["size_bytes"])
            for entry in manifest["files"]
        )
        whole = all(wheel.path.stat().st_size == wheel.size_bytes for wheel in wheels)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return wheels if whole else None


def describe_file(path: Path) -> BundleFile:
    """Hash a file. Raises OSError."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return BundleFile(path=path, sha256=digest, size_bytes=path.stat().st_size)


def _compat_file() -> BundleFile:
    return describe_file(Path(str(files("bootstrap").joinpath("node", COMPAT_FILE))))


def _download(target: WheelTarget, requirements: tuple[str, ...], directory: Path) -> tuple[BundleFile, ...]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".fetching-"))
    try:
        _pip_download(target, requirements, temporary)
        wheels = sorted((describe_file(path) for path in temporary.glob("*.whl")), key=lambda file: file.name)
        manifest = {
            "target": asdict(target),
            "files": [{"name": w.name, "sha256": w.sha256, "size_bytes": w.size_bytes} for w in wheels],
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        if directory.exists():  # damaged, or without a manifest
            shutil.rmtree(directory)
        temporary.rename(directory)
        return tuple(replace(wheel, path=directory / wheel.name) for wheel in wheels)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _pip_download(target: WheelTarget, requirements: tuple[str, ...], directory: Path) -> None:
    major, minor = target.python_version
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--dest", str(directory), "--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", f"{major}.{minor}"]
    for tag in platform_tags(target):
        command += ["--platform", tag]
    result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()][-LAST_LINES:]
        said = "\n".join(f"  | {line}" for line in lines)
        wanted = " ".join(requirements)
        raise ClusterError(
            f"pip could not fetch the nodes' wheels (Python {major}.{minor}, {target.machine}): {wanted}\n{said}",
            hint="check the versions in [bootstrap], and that this machine reaches a package index",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time fetch a bundle; the kernel lets go of the lock when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
