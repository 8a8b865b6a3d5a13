"""Packages are resolved before nodes are launched."""

from importlib.metadata import version
from pathlib import Path

import pytest

from bootstrap.config import BootstrapConfig
from bootstrap.environment.ahead import check_packages
from bootstrap.environment.requirements import Requirements
from foundation.errors import ClusterError
from foundation.progress import silent
from index_server import Index, make_source, make_wheel
from provision.oracle.tables import Version

NONE = BootstrapConfig(framework="none")


@pytest.fixture
def index(empty_index: Index) -> Index:
    """A package index with `thing`, also for Python 3.12 alone as `newer`, and `sourced` without a wheel."""
    for name in (f"uv-{version('uv')}", "thing-1.0"):
        make_wheel(empty_index.folder, f"{name}-py3-none-any.whl", {"x.py": b""})
    make_wheel(empty_index.folder, "newer-1.0-cp312-none-any.whl", {"y.py": b""})
    make_source(empty_index.folder, "sourced-1.0.tar.gz", {})
    return empty_index


def check(
    tmp_path: Path, *requirements: str, pythons: tuple[Version, ...] = ((3, 11),), config: BootstrapConfig = NONE
) -> None:
    check_packages(
        config,
        packages=Requirements(lines=requirements),
        machine="x86_64",
        gpu=None,
        pythons=pythons,
        glibc=(2, 36),
        cache=tmp_path / "cache",
        report=silent,
    )


def test_a_package_that_does_not_exist(tmp_path: Path, index: Index) -> None:
    del index
    with pytest.raises(ClusterError, match=r"no version of thing==9"):
        check(tmp_path, "thing==9")


@pytest.mark.parametrize("folder", ["wheels/", "s3://bucket/"])
def test_packages_beside_a_wheel_of_the_users_own(tmp_path: Path, index: Index, folder: str) -> None:
    make_wheel(index.folder, "numpy-1.23.5-py3-none-any.whl", {"n.py": b""})
    check(tmp_path, "thing", config=BootstrapConfig(mxnet=f"{folder}mxnet-1.7.0-1_cu112-py3-none-linux_x86_64.whl"))


@pytest.mark.slow
def test_only_what_no_likely_node_can_install_is_refused(tmp_path: Path, index: Index) -> None:
    """A package may have wheels for the Python of another image, or be built on a node."""
    del index
    check(tmp_path, "newer", pythons=((3, 11), (3, 12)))
    check(tmp_path, "sourced")
