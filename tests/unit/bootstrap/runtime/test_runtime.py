"""The runtime of our own programs: which Python it has, and that it works where it is placed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.environment.steps import UnpackPython, plan_python
from bootstrap.runtime import runtime as runtimes
from bootstrap.runtime.code import FOLDER, runtime_digest, runtime_path
from bootstrap.runtime.runtime import Runtime, Runtimes
from bootstrap.transfer.tree import TreeArchives
from foundation.errors import ClusterError
from foundation.progress import silent
from node_dir import start_placer
from node_facts import FACTS

SYSTEM = FoundPython(path=sys.executable, version=sys.version_info[:2])
OLD = FoundPython(path="/usr/bin/python3", version=(3, 9))


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundleFile:
    """The only wheel that the index has."""
    path = tmp_path / "tool-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tool/__init__.py", "#!/not/a/program\nVALUE = 7\n")
        archive.writestr("tool-1.data/scripts/tool", "#!/bin/sh\necho ran\n")
    described = describe_file(path)
    monkeypatch.setattr(runtimes, "fetch_wheels", lambda *_, **__: (described,))
    return described


def plan(facts: NodeFacts, runtime: Runtime) -> object:
    return plan_python(facts, runtime.packed, runtime.tree, what="our own programs", node="n")


def test_a_placed_runtime_has_packages_and_our_code(wheel: BundleFile, tmp_path: Path) -> None:
    facts = replace(FACTS, pythons=(OLD, SYSTEM))
    found = Runtimes(tmp_path / "cache", silent).get(facts, node="n")
    assert (found.python, found.packed, plan(facts, found)) == (SYSTEM.path, None, ((), ()))
    home = tmp_path / "home" / ".cluster"
    with TreeArchives((), cache=tmp_path / "cache") as archives, start_placer() as placer:
        file, task = archives.write(found.tree)
        place = home / task["archive"]
        place.parent.mkdir(parents=True)
        for _ in range(2):
            place.write_bytes(file.path.read_bytes())
            assert placer.place(home, {**task, "folder": FOLDER, "python": found.python_path}) == {}
    path = Path(runtime_path(str(tmp_path / "home")))
    python = path / "bin" / "python"
    words: list[str | Path] = [python, "-c", "import sys, tool; print(tool.VALUE, sys.prefix)"]
    assert subprocess.check_output(words, text=True) == f"7 {path}\n"
    assert subprocess.check_output([path / "bin" / "tool"], text=True) == "ran\n"
    words = [python, "-c", "from node import programs; print(programs.CODE_DIR)"]
    assert subprocess.check_output(words, text=True, cwd=path) == f"{path}\n"


def test_an_old_image_gets_a_python(wheel: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = BundleFile(path=tmp_path / "python.tar.gz", sha256="ab" * 32, size_bytes=1, unpacked_bytes=2)
    monkeypatch.setattr(runtimes, "fetch_python", lambda *_, **__: packed)
    facts: NodeFacts = replace(FACTS, pythons=(OLD,))
    made = Runtimes(tmp_path, silent)
    found = made.get(facts, node="n")
    assert (found.tree.digest, found.python_path) == (runtime_digest(), f"python/{packed.sha256}/bin/python3.11")
    assert plan(facts, found) == ((packed,), (UnpackPython(packed=packed),))
    ready = replace(facts, pythons_ready=frozenset([packed.sha256]))
    assert plan(ready, found) == ((), ())
    with pytest.raises(ClusterError, match=r"n: it has no Python 3\.10 or newer"):
        made.get(replace(facts, glibc=(2, 12)), node="n")
    with pytest.raises(ClusterError, match="our own programs need"):
        plan(replace(facts, disk_free_kib=1), found)
