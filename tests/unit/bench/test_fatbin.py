"""The GPU architectures in a real wheel, by the reader of fat binaries."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.fatbin import read_wheel
from bench.wheel_code import differences
from provision.oracle.tables import find_wheel


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_real_wheel_matches_the_table(tmp_path: Path) -> None:
    """The smallest GPU wheel, 327 MB, from PyPI."""
    requirement = "mxnet-cu110==1.9.1"
    target = ["--no-deps", "--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.8"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", *target, "--dest", str(tmp_path), requirement]
    subprocess.run(pip, check=True)
    (path,) = tmp_path.glob("*.whl")
    known = find_wheel(requirement)
    assert known is not None
    assert differences(known, read_wheel(path)) == ()
    assert abs(path.stat().st_size - known.size_mb * 1e6) <= 1e6
