"""The files of an environment: locked and fetched once by the real uv, cached, and fetched again if damaged."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment.bundle import fetch_bundle
from bootstrap.environment.file_cache import describe_file, fetch_once
from bootstrap.environment.steps import plan_node, render_script
from bootstrap.runtime.code import runtime_digest
from foundation.errors import ClusterError
from foundation.progress import Event, silent
from index_server import make_wheel
from node_facts import FACTS, TARGET, make_programs, run_shell
from project import REPOSITORY

UV = Path(sysconfig.get_path("scripts")) / "uv"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which uv finds its wheels, instead of an index."""
    wheels = tmp_path / "wheels"
    monkeypatch.setattr("bootstrap.environment.bundle.version", lambda _: "9.9")
    make_wheel(wheels, "thing-1.0-py3-none-any.whl", {"thing.py": b"x = 1\n"})
    uv = "uv-9.9-py3-none-manylinux2014_x86_64.whl"
    make_wheel(wheels, uv, {"uv-9.9.data/scripts/uv": f'#!/bin/sh\nexec {UV} "$@"\n'.encode()})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def python_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python for uv to fetch: an archive on this disk, packed from the Python that runs this test."""
    short = ".".join(map(str, sys.version_info[:2]))
    archive = tmp_path / "python.tar.gz"
    real = Path(os.path.realpath(sys.executable))
    prefix = Path(sys.base_prefix)
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(real, f"python/bin/python{short}")
        for link in ("python3", "python"):
            entry = tarfile.TarInfo(f"python/bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, f"python{short}"
            packed.addfile(entry)
        library = prefix / "lib" / f"python{short}"
        packed.add(library, f"python/lib/python{short}", filter=_needed)
        for shared in (prefix / "lib").glob(f"libpython{short}.so*"):
            packed.add(shared, f"python/lib/{shared.name}")
    offer_python(archive, hashlib.sha256(archive.read_bytes()).hexdigest(), tmp_path, monkeypatch)
    return archive


def offer_python(archive: Path, sha256: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes uv find only this archive."""
    version = ".".join(map(str, sys.version_info[:3]))
    entry = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": sys.version_info[0],
        "minor": sys.version_info[1],
        "patch": sys.version_info[2],
        "prerelease": "",
        "url": archive.as_uri(),
        "sha256": sha256,
        "variant": None,
        "build": "20250101",
    }
    downloads = folder / "downloads.json"
    downloads.write_text(json.dumps({f"cpython-{version}-linux-x86_64-gnu": entry}))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(downloads))
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv-cache"))


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ["/site-packages", "/dist-packages", "/test", "/__pycache__", "/idlelib", "/lib2to3", "/config-"]
    left_out += ["/tkinter", "/ensurepip", "/unittest", "/distutils", "/pydoc_data"]
    return None if any(part in entry.name for part in left_out) else entry


def test_a_bundle_is_fetched_once_by_the_real_uv(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(TARGET, requirements=("thing==1.0",))
    first = fetch_bundle(target, cache=tmp_path / "cache", report=silent)
    assert [file.name for file in first.files[:2]] == sorted(path.name for path in wheels.iterdir())
    assert (first.uv.name, first.python) == (first.files[1].name, None)
    assert (first.wheels, first.packages) == (first.files[:1], ("thing==1.0",))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch_bundle(target, cache=tmp_path / "cache", report=silent) == first
    more = tuple(f"thing==1.0 --hash=sha256:{number:064}" for number in range(99))  # a lock names hundreds
    with pytest.raises(ClusterError, match="uv finds no packages") as raised:
        fetch_bundle(replace(target, requirements=(*more, "other==1")), cache=tmp_path / "cache", report=silent)
    assert "nowhere" in raised.value.message
    assert len(raised.value.message) < 500
    assert not list((tmp_path / "cache").rglob(".fetching-*"))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda wheel, _: wheel.write_bytes(wheel.read_bytes()[:10]), True),
        (lambda _, manifest: manifest.write_bytes(b"\xff\x00" * 99), False),
    ],
)
def test_damaged_files_are_fetched_again(tmp_path: Path, damage: Callable[[Path, Path], object], *, told: bool) -> None:
    def fetch(folder: Path) -> None:
        make_wheel(folder, "thing-1.0-py3-none-any.whl", {"thing.py": b"x = 1\n"})

    for left in (".fetching-killed", "wheels/.fetching-killed"):
        (tmp_path / left).mkdir(parents=True)
    whole = fetch_once(tmp_path, "some/key", fetch, what="fetching", report=silent)
    assert not list(tmp_path.rglob(".fetching-*"))
    damage(whole[0].path, tmp_path / "some" / "key.json")
    events: list[Event] = []
    assert fetch_once(tmp_path, "some/key", fetch, what="fetching", report=events.append) == whole
    assert describe_file(whole[0].path) == whole[0]
    assert [event.kind for event in events] == ["warn"] * told + ["start", "done"]
    assert not told or str(whole[0].path) in events[0].what


@pytest.mark.slow
def test_an_environment_with_a_managed_python(tmp_path: Path, wheels: Path, python_source: Path) -> None:
    """The real uv fetches the Python here, and makes the environment on the node without package index or network."""
    version = sys.version_info[:2]
    target = replace(TARGET, python_version=version, python_path=None, requirements=("thing==1.0",))
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=silent)
    python_source.unlink()
    assert fetch_bundle(target, cache=tmp_path / "cache", report=silent) == bundle

    home = tmp_path / "it's a home"
    for file in bundle.files:
        place = home / ".cluster" / "files" / file.sha256 / file.name
        place.parent.mkdir(parents=True)
        place.hardlink_to(file.path)
    runtime = home / ".cluster" / "runtime" / runtime_digest()
    make_programs(runtime / "bin", python=f'exec {sys.executable} "$@"')
    for name in ("mxnet_cluster", "node"):
        (runtime / name).symlink_to(REPOSITORY / name)
    plan = plan_node(FACTS, bundle=bundle, setup=None, trees=(), cluster="c", is_head=False)
    script = render_script(plan.steps)
    done = run_shell(script, home)
    assert done.returncode == 0, done.stderr
    python = home / ".cluster" / "env" / bundle.digest / "bin" / "python"
    code = "import thing, threading, sys; print(sys.base_prefix, hasattr(threading.Thread, 'isAlive'))"
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env={}).stdout
    assert output == f"{home}/.cluster/python/{bundle.python.sha256} True\n"
    assert (home / ".cluster" / "env" / bundle.digest / ".unresolved").exists()
