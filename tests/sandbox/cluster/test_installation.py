"""The project as a user installs it: with uv and with pip, into empty environments, and run in an empty folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from project import REPOSITORY, Project

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(900)]

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "mxnet_cluster", "cluster", "train", "bootstrap", "provision",
           "node", "foundation", "sandbox")  # fmt: skip


def run(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a program to its end, outside the checkout's environment."""
    outside = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    outside["PIP_RETRIES"] = "9"  # two minutes in all: an index may be out of reach for a moment
    done = subprocess.run(
        words, cwd=cwd, env={**outside, **(env or {})}, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def copy_sources(folder: Path) -> Path:
    """Returns a copy of the checkout, in which pip may leave its build files."""
    folder.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def install_by_uv(folder: Path) -> str:
    """Returns the command, after `uv build` and `uv tool install` of the wheel. The sources are deleted."""
    sources = copy_sources(folder / "source")
    uv = (sys.executable, "-m", "uv")
    for project in (".", "sandbox"):
        run(*uv, "build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"), project, cwd=sources)
    shutil.rmtree(sources)
    (wheel,) = (folder / "dist").glob("mxnet_cluster-*.whl")
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    options = ("--quiet", "--python", sys.executable, "--find-links", "dist")
    run(*uv, "tool", "install", *options, str(wheel), cwd=folder, env=places)
    return str(folder / "bin" / "cluster")


@pytest.mark.slow
def test_an_installed_project_needs_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "theirs").mkdir()
    for name in ("train", "sandbox", "cluster"):  # the command does not import the user's own modules
        (tmp_path / "empty" / f"{name}.py").write_text("raise SystemExit('imported by cluster')")
    for name in ("train", "sandbox", "cluster", "json", "click"):
        (tmp_path / "theirs" / f"{name}.py").write_text("raise SystemExit('imported by cluster')")
    command = install_by_uv(tmp_path)
    project = Project(tmp_path / "empty", command=command, env={"PYTHONPATH": f"{tmp_path / 'theirs'}:."})
    try:
        project.run("init", "--template", "mnist")
        url = tomllib.loads((project.directory / "cluster.toml").read_text())["data"]["url"]
        project.run("up")
        project.run("data", "demo", "demo-data")
        project.run("data", "put", "--create-bucket", "demo-data/", url)
        project.run("train")
        project.run("down", "--yes")
        project.run("sandbox", "stop", "--yes")
    finally:
        project.run("sandbox", "stop", "--yes", code=None)
        shutil.rmtree(tmp_path / "tools")  # half a gigabyte, and pytest keeps the folders of its last runs


@pytest.mark.slow
@pytest.mark.parametrize("pip", ["pip==23.2", "pip"])
def test_pip_installs_a_command_that_works(pip: str, tmp_path: Path) -> None:
    """`pip install ./sandbox .` with the oldest supported pip, and with the newest."""
    sources = copy_sources(tmp_path / "source")
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    python = str(environment / "bin" / "python")
    project = Project(empty, command=str(environment / "bin" / "cluster"))
    try:
        run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=empty)
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", pip, cwd=empty)
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", "./sandbox", ".", cwd=sources)
        shutil.rmtree(sources)
        assert project.run("--version").stdout.startswith("cluster, version ")
        project.run("init")
        assert "launch 2 nodes" in project.run("up", "--dry-run").stdout
    finally:
        if Path(project.command).exists():
            project.run("sandbox", "stop", "--yes", code=None)
        shutil.rmtree(environment)
