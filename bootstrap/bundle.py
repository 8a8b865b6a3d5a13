"""The files of the nodes' environment: fetched once on the user's machine, kept, and named by their content."""

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cache as cached
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from bootstrap.config import Fetch
from bootstrap.index import NoUrlError, bring_here, find_resolved, resolve_wheels
from bootstrap.managed_python import fetch_python, is_python
from bootstrap.pip import download_wheels
from bootstrap.shelf import BundleFile, describe_file, fetch_once, find_kept
from bootstrap.source import PREFIX
from bootstrap.wheels import WheelTarget
from provision.progress import Report

__all__ = ["COMPAT_FILE", "Bundle", "BundleFile", "Bundles", "describe_file", "fetch_bundle"]

COMPAT_FILE = "_cluster_compat.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """All files of one environment. `digest` names the environment."""

    target: WheelTarget
    files: tuple[BundleFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over what decides how the environment turns out: the files, the Python, how it is made of them."""
        content = [
            self.target.python_version,
            self.target.python_path,
            [(file.name, file.sha256) for file in self.files],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def uv(self) -> BundleFile:
        """The wheel of the tool that makes the environment."""
        return next(file for file in self.files if file.name.startswith("uv-"))

    @property
    def compat(self) -> BundleFile:
        """The module that makes MXNet work with later Pythons and NumPys."""
        return next(file for file in self.files if file.name == COMPAT_FILE)

    @property
    def python(self) -> BundleFile | None:
        """The packed Python, where one is brought along."""
        return next((file for file in self.files if is_python(file)), None)

    @property
    def wheels(self) -> tuple[BundleFile, ...]:
        """What is installed into the environment."""
        return tuple(file for file in self.files if file.name.endswith(".whl") and file != self.uv)


def fetch_bundle(
    target: WheelTarget, *, cache: Path, report: Report, fetch: Fetch = "here", built: BundleFile | None = None
) -> Bundle:
    """The bundle for a target: from the cache, or by pip from the package index that pip is set up to use.

    fetch: "here" brings all wheels to this machine. "head" finds out their URLs alone, and leaves them to the nodes;
    "auto" does so for what is not in the cache yet, where the URLs are of use to others. Whichever was first decides
    on the versions. Whatever is killed in between leaves no half bundle, and a damaged one is named and fetched anew.
    built: the wheel of an MXNet from source, which no index has.
    Raises ClusterError with pip's own words, or uv's for a Python.
    """
    found = _find_wheels(target, cache=cache, report=report, fetch=fetch)
    if built is not None:
        found = (built, *found)
    if target.managed_python:
        python = fetch_python(target.python_version, machine=target.machine, cache=cache, report=report)
        found = (*found, python)
    return Bundle(target=target, files=(*found, _compat_file()))


def _find_wheels(target: WheelTarget, *, cache: Path, report: Report, fetch: Fetch) -> tuple[BundleFile, ...]:
    asked = [requirement for requirement in target.requirements if not requirement.startswith(PREFIX)]
    requirements = (*asked, f"uv=={version('uv')}")
    key_parts = [target.python_version, target.machine, target.glibc, requirements]
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:16]
    folder = cache / "bundles" / key
    kept = find_kept(folder, report=report)
    if kept is not None and fetch != "head":
        return kept
    resolved = find_resolved(key, cache=cache)
    if resolved is None and fetch != "here":
        pins = find_pins(kept or ())
        try:
            resolved = resolve_wheels(target, requirements, key=key, pins=pins, cache=cache, report=report)
        except NoUrlError:
            if fetch == "head":
                raise
    if resolved is None:

        def download(directory: Path) -> dict[str, Any]:
            download_wheels(target, requirements, directory)
            return {"target": asdict(target)}

        what = f"fetching wheels for the nodes: {target.requirements[0]} and what it needs"
        return fetch_once(folder, download, what=what, report=report)
    if fetch == "here":
        for file in resolved:
            bring_here(file, report=report)
    return resolved


def find_pins(wheels: Sequence[BundleFile]) -> tuple[str, ...]:
    """The requirements that wheels fulfil, each in its very version, by their names. Pure."""
    return tuple("{}=={}".format(*file.name.split("-")[:2]) for file in wheels)


@cached
def _compat_file() -> BundleFile:
    return describe_file(Path(str(files("bootstrap").joinpath("node", COMPAT_FILE))))


class Bundles:
    """Each target's bundle, fetched once however many nodes ask for it at the same time."""

    def __init__(self, cache: Path, report: Report, fetch: Fetch) -> None:
        self._cache = cache
        self._report = report
        self._fetch = fetch
        self._lock = threading.Lock()
        self._futures: dict[tuple[WheelTarget, BundleFile | None], Future[Bundle]] = {}

    def get(self, target: WheelTarget, built: BundleFile | None = None) -> Bundle:
        """As `fetch_bundle`, which the first who asks calls."""
        with self._lock:
            future = self._futures.get((target, built))
            mine = future is None
            if future is None:
                future = self._futures[target, built] = Future()
        if mine:
            try:
                bundle = fetch_bundle(target, cache=self._cache, report=self._report, fetch=self._fetch, built=built)
                future.set_result(bundle)
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()
