"""The files that a job sends to the nodes."""

import os
from pathlib import Path
from typing import Any

import pytest

from folders import write_files
from foundation.errors import ConfigError
from foundation.progress import silent
from train.job.payload import Payload, choose_folders, collect_trees, shipped_scripts

LONG = "a" * 5000


def collect(script: str, project: Path, *sync: str, **more: Any) -> Payload:
    return collect_trees(script, **{"sync": sync, "exclude": (), **more}, project_dir=project, report=silent)


@pytest.mark.parametrize(
    ("script", "sync", "path", "sent", "shown"),
    [
        ("train_mnist.py", ("my/",), "train/scripts/train_mnist.py", ["my/net.py", "my/train.py"], "project"),
        ("train_mnist.py", "auto", "train/scripts/train_mnist.py", None, "project"),
        ("my/train.py", (), "my/train.py", ["my/train.py"], "project"),
        ("../outside.py", ("my/net.py",), "outside.py", ["my/net.py", "outside.py"], "project"),
        ("../outside.py", "auto", "outside.py", ["outside.py"], ""),
        ("link.py", (), "link.py", ["link.py"], "project"),
    ],
)
def test_the_users_files_keep_their_paths(
    tmp_path: Path, script: str, sync: Any, *, path: str, sent: list[str] | None, shown: str
) -> None:
    """shown: the folder that the user is told of."""
    folders: list[Path] = []
    payload = collect(script, make_project(tmp_path), sync=sync, approve=lambda of, _: folders.extend(of))
    assert (payload.script, payload.is_own) == (path, script != "train_mnist.py")
    assert (payload.project and [file.path for file in payload.project.files]) == sent
    assert [Path(os.path.normpath(folder)) for folder in folders] == [tmp_path / shown]


@pytest.mark.parametrize(
    ("script", "command", "subfolder", "folders", "named"),
    [
        (None, ("python", "a/x.py"), "", (".",), ("a/x.py",)),
        (None, ("python", "x.py", "../b/y.py"), "a", (".",), ("a/x.py", "b/y.py")),
        (None, ("/usr/bin/env", "python", "ABSOLUTE/a/x.py", "../outside.py", "x\0", LONG), "", (".",), ("a/x.py",)),
        (None, ("bash", "-c", "python a/x.py --data s3://b"), "", (".",), ("a/x.py",)),
        ("a/x.py", (), "", (".",), ("a/x.py",)),  # its arguments may name b/y.py
        ("a/x.py", (), "b", ("a", "b"), ("a/x.py",)),
        ("../outside.py", (), "", (), ()),
        (None, (), "a", (), ()),  # a script that ships
    ],
)
def test_the_folders_that_auto_sends(
    tmp_path: Path,
    *,
    script: str | None,
    command: tuple[str, ...],
    subfolder: str,
    folders: tuple[str, ...],
    named: tuple[str, ...],
) -> None:
    project = tmp_path / "project"
    paths = ("project/a/x.py", "project/a/c/z.py", "project/b/y.py", "outside.py")
    write_files(tmp_path, dict.fromkeys(paths, b""))
    words = [word.replace("ABSOLUTE", str(project)) for word in command]
    own = project / script if script else None
    assert choose_folders(own, words, subfolder=subfolder, project_dir=project) == (folders, named)


def make_project(folder: Path) -> Path:
    project = folder / "project"
    write_files(folder, {path: path.encode() for path in ("project/my/train.py", "project/my/net.py", "outside.py")})
    (project / "link.py").symlink_to(folder / "outside.py")
    return project


@pytest.mark.parametrize("taken", ["outside.py", "outside.py/x"])
def test_two_files_with_the_same_path_are_refused(tmp_path: Path, taken: str) -> None:
    project = make_project(tmp_path)
    (project / taken).parent.mkdir(exist_ok=True)
    (project / taken).touch()
    with pytest.raises(ConfigError, match=r"sync sends another outside\.py to the same path"):
        collect("../outside.py", project, ".", exclude=("link.py",))


def test_a_script_that_does_not_exist(tmp_path: Path) -> None:
    assert "train_mnist.py" in shipped_scripts()
    with pytest.raises(ConfigError, match=r"no-such\.py.*train_mnist\.py"):
        collect("no-such.py", tmp_path)


def test_files_with_settings_are_not_sent(tmp_path: Path) -> None:
    """A job file may have secrets in [train] env."""
    (tmp_path / "train.py").touch()
    (tmp_path / "secret.toml").write_text('env = { TOKEN = "x" }')
    for command in ((), ("true",)):
        payload = collect("train.py", tmp_path, sync="auto", command=command, settings=[tmp_path / "secret.toml"])
        assert [file.path for file in payload.project.files] == ["train.py"]
