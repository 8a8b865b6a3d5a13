"""Files of a folder that somebody else has made: each ends in one line, whatever it is, and nothing hangs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.main import cli
from foundation.errors import ClusterError

NAMED = 'name = "demo"\n'


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


SHAPES: dict[str, tuple[Callable[[Path], object], str]] = {
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "fifo": (os.mkfifo, "not a regular file"),
    "folder": (Path.mkdir, "Is a directory"),
    "large": (write(NAMED + "#" * (1 << 20)), "larger than"),
    "deep list": (write(NAMED + "a = " + "[" * 1000 + "]" * 1000), "nested too deeply"),
}
TOML = {
    **SHAPES,
    "many keys": (write(NAMED + "".join(f"k{number} = 1\n" for number in range(20_000))), "and more"),
}


@pytest.mark.parametrize(("make", "message"), TOML.values(), ids=TOML)
def test_a_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("cluster.toml"))
    done = CliRunner().invoke(cli, ("status",))
    assert isinstance(done.exception, ClusterError), done.exception
    assert done.exception.exit_code == 2
    assert message in done.exception.message
    assert "cluster.toml" in done.exception.message
    assert "cluster.toml" in (done.exception.hint or "")


@pytest.mark.parametrize(
    ("name", "words", "shape"),
    [
        *(("job.toml", ("train", "--job", "job.toml"), shape) for shape in ("fifo", "deep list")),
        ("hosts", ("train", "-H", "hosts", "--", "true"), "fifo"),
        ("requirements.txt", ("up", "--dry-run"), "fifo"),
        *(("mine/pyproject.toml", ("up", "--dry-run"), shape) for shape in ("fifo", "deep list")),
        ("mine/uv.lock", ("up", "--dry-run"), "fifo"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shape: str, name: str, words: tuple[str, ...]
) -> None:
    make, message = SHAPES[shape]
    monkeypatch.chdir(tmp_path)
    packages = [f"-r {name}"] if name == "requirements.txt" else []
    project = "mine" if name.startswith("mine/") else ""
    Path("cluster.toml").write_text(f'{NAMED}[bootstrap]\npackages = {packages}\nproject = "{project}"\n')
    Path("mine").mkdir()
    for other in ("pyproject.toml", "uv.lock"):
        (Path("mine") / other).write_text('version = 1\nrequires-python = ">=3.9"\n')
    Path(name).unlink(missing_ok=True)
    make(Path(name))
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ClusterError), done.exception
    assert done.exception.exit_code == 2
    assert message in done.exception.message
    assert name in done.exception.message
    assert done.exception.hint
