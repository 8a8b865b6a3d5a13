"""The real GPU wheels of MXNet, hundreds of megabytes, on real hosts without a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from project import REPOSITORY, Project

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def old_gpus(tmp_path: Path) -> Iterator[Project]:
    """A cluster of V100s, on which mxnet-cu90 runs, with an image that has no CUDA 9.0."""
    project = Project(tmp_path)
    text = (REPOSITORY / "cluster.toml").read_text()
    text = text.replace('instance_type = "c5.xlarge"', 'instance_type = "p3dn.24xlarge"')
    text = text.replace('# mxnet = "auto"', 'mxnet = "mxnet-cu90==1.6.0.post0"')
    project.write(text)
    try:
        yield project
    finally:
        project.run("sandbox", "reset", "--yes")


def test_verify_names_the_library_that_mxnet_cu90_lacks(old_gpus: Project) -> None:
    old_gpus.run("up", timeout_s=1200)
    listed = old_gpus.run("exec", "--", "sh", "-c", "ls ~/.cluster/env/*/lib/python3*/site-packages/mxnet/").stdout
    assert listed.count("libmxnet.so") == 2
    failed = old_gpus.run("verify", code=1)
    table = failed.stdout + failed.stderr
    assert "libcudart.so.9.0" in table
    assert "CUDA 9.0" in table
    assert "node-0" in table
    assert "node-1" in table
    again = old_gpus.run("up")
    assert "there was nothing to do" in again.stderr
