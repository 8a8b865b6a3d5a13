"""MXNet from source, on real hosts, with a small repository of the same layout."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.user_folders import cache_folder
from project import REPOSITORY, Project
from source_repository import commit, git, write_repository

pytestmark = pytest.mark.sandbox

LOOK = "import mxnet; from dmlc_tracker import tracker; print(mxnet.answer, tracker.PORT)"
PAUSE = ("sleep", "5.4321")
LAUNCH = "ls ~/.cluster/env/*/lib/python3*/site-packages/mxnet/tools/launch.py"


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    """A repository in a system folder of this machine, which hosts see. It is complete before they start."""
    folder = Path(tempfile.mkdtemp(dir="/usr/share", prefix="cluster-test-"))
    try:
        write_repository(folder)
        source = folder / "src" / "answer.c"
        whole = source.read_text()
        git(folder, "checkout", "--quiet", "-b", "broken")
        source.write_text(whole + "this is not C\n")
        commit(folder)
        source.write_text(whole.replace("40", "50"))
        commit(folder)
        git(folder, "checkout", "--quiet", "--detach")
        git(folder, "branch", "--quiet", "--force", "broken", "HEAD~1")
        git(folder, "tag", "repaired")
        makefile = folder / "Makefile"
        makefile.write_text(f"{makefile.read_text()}\t{' '.join(PAUSE)}\n")
        commit(folder)
        git(folder, "tag", "lasting")
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def nodes(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A cluster of two nodes, not yet up, with its own cache of builds and the user's usual wheels."""
    folder = tmp_path_factory.mktemp("source")
    cache = folder / "cache" / "cluster"
    cache.mkdir(parents=True)
    for name in ("bundles", "resolved", "wheels"):
        if (cache_folder() / name).exists():
            shutil.copytree(
                cache_folder() / name, cache / name, copy_function=os.symlink, ignore=shutil.ignore_patterns(".*")
            )
    project = Project(folder, env={"XDG_CACHE_HOME": str(folder / "cache")})
    configure(project, repository, ref="v1.7.x")
    try:
        yield project
    finally:
        project.run("sandbox", "reset", "--yes")


def configure(project: Project, repository: Path, *, ref: str) -> None:
    keys = {
        "mxnet": f"source@{ref}",
        "source_url": f"file://{repository}",
        "build_options": ["USE_S3=0", "USE_OPENCV=0", "USE_BLAS=none"],
        # Otherwise git refuses folders of other users.
        "setup": ["git config --global --add safe.directory '*'", "export BUILDER=module"],
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    shipped = (REPOSITORY / "cluster.toml").read_text()
    project.write(shipped.replace("[bootstrap]\n", f"[bootstrap]\n{text}"))


def ask(project: Project, command: str) -> list[str]:
    """The output of a shell command on each node."""
    return sorted(project.run("exec", "--", "sh", "-c", command).stdout.splitlines())


@pytest.mark.slow
def test_the_head_builds_and_every_node_has_the_library(nodes: Project, repository: Path) -> None:
    said = nodes.run("up").stderr
    assert f"the build of MXNet v1.7.x from file://{repository}" in said
    python = "~/.cluster/env/$(basename $(dirname ~/.cluster/env/*/.unresolved))/bin/python"
    assert ask(nodes, f'{python} -c "{LOOK}"') == ["[node-0] 41 9091", "[node-1] 41 9091"]
    assert len(ask(nodes, LAUNCH)) == 2
    assert "nothing to do" in nodes.run("up").stderr
    [kept] = (nodes.directory / "cache").rglob("mxnet-1.7.0-1_cpu_*.whl")
    commit_id = git(repository, "rev-parse", "--short=12", "v1.7.x")
    assert kept.name == f"mxnet-1.7.0-1_cpu_{commit_id}-py3-none-linux_x86_64.whl"
    assert ask(nodes, "ls -d ~/.cluster/building/* ~/.cluster/built/*/*.whl 2>/dev/null | wc -l") == [
        "[node-0] 1",
        "[node-1] 0",
    ]


@pytest.mark.slow
def test_a_kept_wheel_is_not_built_again(nodes: Project) -> None:
    nodes.run("up")
    [kept] = (nodes.directory / "cache").rglob("mxnet-1.7.0-1_cpu_*.whl")
    before = kept.read_bytes()
    shutil.rmtree(kept.parent)
    said = nodes.run("up").stderr
    assert "taking mxnet-1.7.0" in said
    assert "the build of" not in said
    assert kept.read_bytes() == before
    nodes.run("exec", "--", "sh", "-c", "rm -rf ~/.cluster/env ~/.cluster/files ~/.cluster/built")
    said = nodes.run("up").stderr
    assert "the build of" not in said
    assert len(ask(nodes, LAUNCH)) == 2


@pytest.mark.slow
def test_a_failed_build_is_reported_and_repaired(nodes: Project, repository: Path) -> None:
    configure(nodes, repository, ref="broken")
    said = nodes.run("up", "--yes", code=1).stderr
    assert "node-0: exit code " in said
    assert "from: the build of MXNet broken" in said
    assert "this is not C" in said
    assert said.count("from: the build") == 1
    configure(nodes, repository, ref=git(repository, "rev-parse", "repaired"))
    nodes.run("up")
    with_tools = f'for python in ~/.cluster/env/*/bin/python; do $python -c "{LOOK}" 2>/dev/null || true; done'
    assert "[node-1] 51 9091" in ask(nodes, with_tools)


@pytest.mark.slow
def test_a_missing_ref_is_an_error(nodes: Project, repository: Path) -> None:
    configure(nodes, repository, ref="v0.0.0")
    said = nodes.run("up", "--yes", code=1).stderr
    assert "node-0: exit code 128 from: the build of MXNet v0.0.0 from file://" in said
    assert "invalid reference: v0.0.0" in said
    configure(nodes, repository, ref="v1.7.x")
    nodes.run("up")


@pytest.mark.slow
def test_a_build_survives_an_interrupted_command(nodes: Project, repository: Path) -> None:
    configure(nodes, repository, ref="lasting")
    nodes.run("up", "--yes")
    shutil.rmtree(nodes.directory / "cache" / "cluster" / "built")
    nodes.run("exec", "--", "sh", "-c", "rm -rf ~/.cluster/env ~/.cluster/files ~/.cluster/built")
    with nodes.running("up") as command:
        deadline = time.monotonic() + 60
        while not any(is_pausing(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
            assert command.poll() is None, nodes.messages.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        command.send_signal(signal.SIGINT)
        command.wait(30)
    said = nodes.run("up").stderr
    assert "taking mxnet-1.7.0" in said
    assert "the build of" not in said


def is_pausing(path: Path) -> bool:
    try:
        return path.read_bytes().split(b"\0")[:-1] == [word.encode() for word in PAUSE]
    except OSError:  # it has ended
        return False
