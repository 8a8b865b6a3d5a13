"""The project as a user installs it: by pip, into an empty environment, and run in an empty folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from project import REPOSITORY, Project

pytestmark = pytest.mark.sandbox

SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "mxnet_cluster",
    "cluster",
    "train",
    "bootstrap",
    "provision",
    "foundation",
    "sandbox",
)


OWN = """
import argparse
import os
import mxnet
import mymod

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
if os.environ["DMLC_ROLE"] == "worker":
    mymod.MODEL.write_text(f"{epochs} epochs")
mxnet.kv.create(os.environ["CLUSTER_KV_STORE"])
"""


def copy_sources(folder: Path) -> Path:
    """A copy of the checkout, in which pip may leave what it builds."""
    folder.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def install(source: Path, environment: Path, *, pip: str, options: tuple[str, ...] = ()) -> None:
    """Install the project with a release of pip into an empty virtual environment."""
    outside = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    outside["PIP_RETRIES"] = "9"  # two minutes in all: an index may be out of reach for a moment

    def run(*words: str) -> None:
        done = subprocess.run(words, cwd=source, env=outside, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    python = str(environment / "bin" / "python")
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", pip)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *options, ".")


@pytest.mark.timeout(900)
def test_an_installed_project_needs_no_checkout(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    install(copy_sources(tmp_path / "source"), environment, pip="pip==23.0.1")  # Debian 12's
    shutil.rmtree(tmp_path / "source")
    (tmp_path / "empty").mkdir()
    (tmp_path / "theirs").mkdir()
    for name in ("train", "sandbox", "cluster"):  # the user's own modules are no part of the command
        (tmp_path / "empty" / f"{name}.py").write_text("raise SystemExit('imported by cluster')")
    for name in ("train", "sandbox", "cluster", "json", "click"):
        (tmp_path / "theirs" / f"{name}.py").write_text("raise SystemExit('imported by cluster')")
    command = str(environment / "bin" / "cluster")
    project = Project(tmp_path / "empty", command=command, env={"PYTHONPATH": f"{tmp_path / 'theirs'}:."})
    try:
        project.run("init")
        url = tomllib.loads((project.directory / "cluster.toml").read_text())["data"]["url"]
        project.run("up")
        project.run("data", "demo", "demo-data")
        project.run("data", "put", "--create-bucket", "demo-data/", url)
        project.run("train")
        (project.directory / "own.py").write_text(OWN)
        (project.directory / "mymod.py").write_text("from pathlib import Path\nMODEL = Path.home() / 'model.txt'\n")
        project.run("train", "own.py", "--epochs", "1")
        project.run("cp", "node-0:model.txt", ".")
        assert (project.directory / "model.txt").read_text() == "1 epochs"
        project.run("down", "--yes")
        project.run("sandbox", "stop")
    finally:
        project.run("sandbox", "reset", code=None)
        shutil.rmtree(environment)  # half a gigabyte, and pytest keeps the folders of its last runs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_newest_pip_finds_releases_that_fit_together(tmp_path: Path) -> None:
    install(copy_sources(tmp_path / "source"), tmp_path / "environment", pip="pip", options=("--dry-run",))
