"""The runtime of our own programs on an image whose Pythons are too old."""

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
