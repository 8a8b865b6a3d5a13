"""This project's own command on the head: its Python and its packages."""

from importlib.metadata import version
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment.bundle import Bundle, fetch_bundle, find_records
from bootstrap.environment.client import PACKAGES, choose_client
from bootstrap.environment.facts import FoundFramework, FoundPython, NodeFacts
from foundation.progress import silent
from index_server import Index, make_wheel
from node_facts import BUNDLE, FACTS, TARGET

OLD = FoundPython(path="/usr/bin/python3", version=(3, 10))
NEW = FoundPython(path="/usr/bin/python3.13", version=(3, 13))
OF_TORCH = FoundFramework(
    name="torch",
    version="2.13",
    cuda=None,
    numpy="",
    python=FoundPython(path="/opt/pytorch/bin/python3", version=(3, 12)),
)


@pytest.mark.parametrize(
    ("facts", "path", "chosen"),
    [
        (FACTS, "/usr/bin/python3", (3, 11)),
        (replace(FACTS, pythons=(OLD, NEW)), NEW.path, (3, 13)),
        (replace(FACTS, pythons=(OLD,), frameworks=(OF_TORCH,)), "/opt/pytorch/bin/python3", (3, 12)),
        (replace(FACTS, pythons=(OLD,)), None, (3, 11)),  # none that fits: a packed one
    ],
)
def test_the_python(facts: NodeFacts, path: str | None, chosen: tuple[int, int]) -> None:
    target = choose_client(facts)
    assert (target.python_path, target.python_version) == (path, chosen)
    assert target.requirements == tuple(f"{name}=={version(name)}" for name in PACKAGES)


def test_its_wheels_fit_the_heads_system(tmp_path: Path, empty_index: Index) -> None:
    """Also after another head with a newer system."""
    make_wheel(empty_index.folder, f"uv-{version('uv')}-py3-none-any.whl", {})
    for system in ("manylinux2014", "manylinux_2_34"):
        make_wheel(empty_index.folder, f"some-1.0-py3-none-{system}_x86_64.whl", {"x": system.encode()})
    for glibc, system in (((2, 36), "manylinux_2_34"), ((2, 26), "manylinux2014")):
        target = replace(choose_client(replace(FACTS, glibc=glibc)), requirements=("some==1.0",))
        [wheel] = fetch_bundle(target, cache=tmp_path / "cache", report=silent).wheels
        assert wheel.name == f"some-1.0-py3-none-{system}_x86_64.whl"


def test_a_packed_python_is_recorded_too() -> None:
    packed = replace(BUNDLE.files[0], path=Path("python-3.11.9.tar.gz"), sha256="5" * 64)
    target = replace(TARGET, python_path=None)
    records = find_records(Bundle(target=target, files=(*BUNDLE.files, packed)))
    assert records["pythons/cpython-3.11-linux-x86_64-gnu"] == (packed,)
    [wheels] = [files for key, files in records.items() if key.startswith("bundles/")]
    assert wheels == BUNDLE.files
