"""A wheel of the user's own, from S3, on real hosts: it is fetched once, and every node imports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from project import REPOSITORY, Project
from source_repository import write_repository

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that examples/build-mxnet.sh has built from a small repository."""
    folder = tmp_path_factory.mktemp("wheel")
    write_repository(folder / "repository")
    env = {"PATH": os.defpath, "PYTHON": sys.executable, "REPOSITORY": f"file://{folder}/repository", "CUDA": "/none"}
    script = REPOSITORY / "examples" / "build-mxnet.sh"
    subprocess.run(["sh", str(script)], cwd=folder, env=env, capture_output=True, check=True)
    [path] = folder.glob("*.whl")
    return path


def test_a_wheel_in_s3(wheel: Path, tmp_path: Path) -> None:
    project, bucket = Project(tmp_path), f"wheels-{os.getpid()}"  # the cache knows those of earlier runs
    shipped = (REPOSITORY / "cluster.toml").read_text()
    project.write(shipped)
    try:
        project.run("sandbox", "start")
        project.run("data", "put", "--create-bucket", str(wheel), f"s3://{bucket}/")
        project.write(shipped.replace("[bootstrap]\n", f'[bootstrap]\nmxnet = "s3://{bucket}/{wheel.name}"\n'))
        said = project.run("up").stderr
        assert said.count(f"fetching s3://{bucket}/{wheel.name}") >= 1
        look = "import mxnet; from dmlc_tracker import tracker; print(mxnet.answer, tracker.PORT)"
        found = project.run("exec", "--", "sh", "-c", f"~/.cluster/env/*/bin/python -c '{look}'").stdout
        assert sorted(found.splitlines()) == ["[node-0] 42 9091", "[node-1] 42 9091"]
        assert "nothing to do" in project.run("up").stderr
    finally:
        project.run("sandbox", "reset", "--yes")
