"""The runtime of our own programs: its Python on an old image, and its packages."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.steps import UnpackPython, plan_python
from bootstrap.runtime import runtime as runtimes
from bootstrap.runtime.code import runtime_digest
from bootstrap.runtime.runtime import RuntimePlacing
from foundation.progress import silent
from index_server import make_wheel
from node_facts import FACTS


def test_an_old_image_gets_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = BundleFile(path=tmp_path / "python.tar.gz", sha256="ab" * 32, size_bytes=1)
    monkeypatch.setattr(runtimes, "_find_packages", lambda *_, **__: [])
    monkeypatch.setattr(runtimes, "fetch_python", lambda *_, **__: packed)
    facts: NodeFacts = replace(FACTS, pythons=(FoundPython(path="/usr/bin/python3", version=(3, 9)),))
    made = RuntimePlacing(tmp_path, Mock(), Mock())
    found = made.find(facts)
    assert (found.tree.digest, found.python) == (runtime_digest(), f"python/{packed.sha256}/bin/python3.11")

    def plan(facts: NodeFacts) -> object:
        return plan_python(facts, found.packed)

    assert plan(facts) == ((packed,), (UnpackPython(packed=packed),))
    assert plan(replace(facts, files=frozenset([packed.sha256]))) == ((), (UnpackPython(packed=packed),))
    assert plan(replace(facts, pythons_ready=frozenset([packed.sha256]))) == ((), ())


def test_the_users_settings_of_uv_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path, "thing-1.0-py3-none-any.whl", {"thing.py": b"x = 1\n"})
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv.toml").write_text('link-mode = "symlink"\n[pip]\nrequire-hashes = true\n')
    (tmp_path / "limits").write_text("other<9\n")
    for name, value in {"CONSTRAINT": tmp_path / "limits", "FIND_LINKS": tmp_path, "NO_INDEX": 1}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(runtimes, "PACKAGES", ("thing==1.0",))
    found = runtimes._find_packages((3, 11), "x86_64", cache=tmp_path / "cache", report=silent)
    assert "lib/python3.11/site-packages/thing.py" in [file.path for file in found]
