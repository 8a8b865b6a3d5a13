"""The files of the nodes' environment, fetched once to the user's machine, cached, and named by their content."""

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from bootstrap.environment.file_cache import (
    FETCHING,
    BundleFile,
    fetch_once,
    find_kept,
    remember,
)
from bootstrap.environment.framework import Torch, is_torch
from bootstrap.environment.lock import NoSourceError, NoWheelError, lock_wheels
from bootstrap.environment.target import MANAGED_PYTHONS, WheelTarget, is_wheel_file
from bootstrap.environment.uv import UvError, find_settings, run_uv
from bootstrap.runtime.code import modules_digest
from foundation.errors import ClusterError
from foundation.progress import Event, Report, silent
from provision.oracle.tables import Version, show

TORCH_RELEASE = re.compile(r"torch==[0-9.]+")
"""A version of PyTorch without the label of a build."""
LARGE_GB = 1.0
"""Wheels of this size are announced before they are fetched."""


class Bundle(Struct, frozen=True, kw_only=True):
    """The files of one environment. `digest` names the environment."""

    target: WheelTarget
    files: tuple[BundleFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over the inputs of the environment: the Python, the files, and our modules in it.

        A packed Python counts by its name, since uv writes the folder into it where another machine installed it.
        """
        content: list[object] = [
            self.target.python_version,
            self.target.python_path,
            [(file.name, file.sha256 if file != self.python else "") for file in self.files],
            modules_digest(),
        ]
        base = self.target.base
        if base is not None:
            content.append([base.name, base.version, base.python.path])
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def uv(self) -> BundleFile:
        """The wheel of the tool that makes the environment."""
        return next(file for file in self.files if file.name.startswith("uv-"))

    @property
    def library(self) -> str:
        """Its framework, such as "torch==2.13.0+cpu" or "mxnet==1.7.0.post2", or the file of an MXNet.

        "" without a framework. A framework that a Python of the node has counts as the environment's.
        """
        torch = self.torch
        if self.target.framework == "pytorch" and torch is not None:
            return f"torch=={torch.version}"
        base = self.target.base
        if base is not None:
            return f"{base.name}=={base.version}"
        return self.target.mxnet or ""

    @property
    def torch(self) -> Torch | None:
        """The environment's PyTorch: that of a wheel, or else the image's; None without PyTorch."""
        names = [file.name for file in self.wheels]
        version = next((name.split("-")[1] for name in names if name.startswith("torch-")), None)
        if version is not None:
            with_cuda = any(name.startswith("nvidia_") for name in names) or "+cu" in version
            return Torch(version=version, has_cuda=with_cuda)
        base = self.target.base
        if base is None or base.name != "torch":
            return None
        return Torch(version=base.version, has_cuda=base.cuda is not None)

    @property
    def python(self) -> BundleFile | None:
        """The packed Python; None if the environment uses a Python of the node."""
        return next((file for file in self.files if file.name.endswith(".tar.gz")), None)

    @property
    def wheels(self) -> tuple[BundleFile, ...]:
        """The wheels that are installed into the environment."""
        uv = self.uv
        return tuple(file for file in self.files if file.name.endswith(".whl") and file != uv)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of these wheels, such as "torch==2.13.0"."""
        return tuple("==".join(file.name.split("-")[:2]) for file in self.wheels)


BuildPackage = Callable[[WheelTarget, str], BundleFile]
"""Builds a wheel for a requirement for which the index has none."""


def fetch_bundle(
    target: WheelTarget,
    *,
    cache: Path,
    report: Report,
    build: BuildPackage | None = None,
) -> Bundle:
    """The bundle for a target: from the cache, or as uv finds its wheels in this machine's package indexes.

    Wheels with URLs are not fetched: a node does that if it can. Later calls find the versions
    of the first. A killed fetch leaves no partial bundle; a damaged bundle is reported and fetched again.
    build: builds packages that have no wheel.
    Raises ClusterError with the output of uv.
    """
    built: dict[str, BundleFile] = {}
    while True:
        try:
            found = find_wheels(target, tuple(built.values()), cache=cache, report=report)
            break
        except NoWheelError as error:
            if build is None or error.requirement in built:
                raise
            try:
                built[error.requirement] = build(target, error.requirement)
            except NoSourceError:
                raise error from None
    if target.python_path is None:
        python = fetch_python(target.python_version, machine=target.machine, cache=cache, report=report)
        found = (*found, python)
    return Bundle(target=target, files=found)


def find_wheels(
    target: WheelTarget, built: Sequence[BundleFile], *, cache: Path, report: Report
) -> tuple[BundleFile, ...]:
    """The wheels for a target: from the cache, or those that uv chooses now.

    built: wheels that no index has. Raises NoWheelError, ClusterError with the output of uv.
    """
    key = f"bundles/{_find_key(target)}"
    found = find_kept(cache, key, report=report)
    if found is None:
        found = _lock(target, built, cache=cache, report=report)
        remember(cache, key, found)
    return found


def _lock(target: WheelTarget, built: Sequence[BundleFile], *, cache: Path, report: Report) -> tuple[BundleFile, ...]:
    """Locks the wheels, with the CPU build of PyTorch where that is enough and an index has it."""
    requirements = _find_requirements(target)
    for_cpu = find_cpu_build(target, requirements)
    if for_cpu is not None:
        try:
            return lock_wheels(target, for_cpu, built=built, cache=cache, report=report)
        except ClusterError as error:  # other errors come again below
            if isinstance(error, NoWheelError) and not is_torch(error.requirement):
                raise
    found = lock_wheels(target, requirements, built=built, cache=cache, report=report)
    size_gb = sum(file.size_bytes for file in found) / 1e9
    if for_cpu is not None and size_gb > LARGE_GB:
        what = (
            f"{size_gb:.1f} GB of wheels, with CUDA: the nodes have no GPU, but the package index that this machine "
            f"uses has no {next(one for one in for_cpu if one not in requirements)}"
        )
        report(Event(kind="info", what=what))
    return found


def find_cpu_build(target: WheelTarget, requirements: Sequence[str]) -> tuple[str, ...] | None:
    """The requirements with the CPU build of PyTorch, on nodes without a GPU; None if they do not change. Pure."""
    if not target.without_gpus:
        return None
    found = tuple(f"{one}+cpu" if TORCH_RELEASE.fullmatch(one) else one for one in requirements)
    return found if found != tuple(requirements) else None


def _find_requirements(target: WheelTarget) -> tuple[str, ...]:
    named = [one for one in target.requirements if not is_wheel_file(one) or "/" in one]  # not the name of a file
    return (*named, f"uv=={version('uv')}")


def _find_key(target: WheelTarget) -> str:
    key_parts: list[object] = [target.python_version, target.machine, target.glibc, _find_requirements(target)]
    if target.limits:
        key_parts += [target.limits]
    if find_cpu_build(target, _find_requirements(target)) is not None:
        key_parts += ["cpu"]
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:16]


def find_records(bundle: Bundle) -> dict[str, tuple[BundleFile, ...]]:
    """The records of a bundle's files in a cache, by key: with them, fetch_bundle finds the files elsewhere. Pure."""
    target = bundle.target
    records = {f"bundles/{_find_key(target)}": tuple(file for file in bundle.files if file != bundle.python)}
    if bundle.python is not None:
        records[_python_key(target.python_version, target.machine)] = (bundle.python,)
    return records


def find_python_records(machines: Iterable[str], *, cache: Path) -> dict[str, tuple[BundleFile, ...]]:
    """The records of the packed Pythons of the runtimes, of those that this machine has fetched."""
    keys = {_python_key(MANAGED_PYTHONS[0], machine) for machine in machines}
    found = {key: find_kept(cache, key, report=silent) for key in keys}
    return {key: files for key, files in found.items() if files is not None}


def _python_key(version: Version, machine: str) -> str:
    return f"pythons/cpython-{show(version)}-linux-{machine}-gnu"


def fetch_python(version: Version, *, machine: str, cache: Path, report: Report) -> BundleFile:
    """A packed Python, from the cache or fetched by uv. Its archive has `bin/` and `lib/` at the top.

    It is one of Astral's builds (https://gregoryszorc.com/docs/python-build-standalone/), which run in any folder. uv's
    own settings select the download server: UV_PYTHON_INSTALL_MIRROR, UV_PYTHON_DOWNLOADS_JSON_URL.
    Raises ClusterError with the output of uv.
    """
    recorded = _python_key(version, machine)
    key = recorded.removeprefix("pythons/")

    def fetch(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache, prefix=FETCHING) as temporary:
            installed = _install(key, Path(temporary))
            name = f"python-{installed.name.removeprefix('cpython-')}.tar.gz"
            with tarfile.open(directory / name, "w:gz", compresslevel=6) as archive:
                archive.add(installed, ".")

    what = f"fetching Python {show(version)} for the nodes"
    (file,) = fetch_once(cache, recorded, fetch, what=what, report=report)
    return file


def _install(key: str, directory: Path) -> Path:
    words = ["python", "install", "--no-progress", "--no-bin", "--install-dir", str(directory), key]
    message = ""
    try:
        # In the root folder, uv finds the user's uv.toml, but not one of a project.
        run_uv(words, folder=Path("/"), environment=find_settings(os.environ)[0])
    except UvError as error:
        message = str(error)
    found = [path for path in directory.glob("cpython-*") if path.is_dir() and not path.is_symlink()]
    if not message and len(found) == 1:
        return found[0]
    raise ClusterError(
        f"uv could not fetch a Python for the nodes: {key}{message}",
        hint="check that this machine reaches uv's download server (UV_PYTHON_INSTALL_MIRROR names another "
        "one), or use an image with Python 3.9 to 3.12",
    )
