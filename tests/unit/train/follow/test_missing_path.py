"""Advice for a file that a program does not find on the nodes."""

from pathlib import Path
from typing import Any

import pytest

from job_events import line
from train.follow.advice import Advisor
from train.follow.missing_path import explain_missing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    for name in ("data/train/1.jpg", "train.py", "settings.yaml", ".env", "big.bin"):
        (tmp_path / name).write_text(name)
    return tmp_path


IGNORED = '.gitignore leaves data/ out: to send it, set `[bootstrap] exclude = ["!data/"]`'
WORK = "/home/ubuntu/.cluster/jobs/20261127-225525-9be1a7/work"


@pytest.mark.parametrize(
    ("path", "sync", "exclude", "advice"),
    [
        ("data/train", "auto", (), f"data/train is on this machine, but not on the nodes: {IGNORED}"),
        ("./data/train/1.jpg", "auto", (), f"data/train/1.jpg is on this machine, but not on the nodes: {IGNORED}"),
        (f"{WORK}/data", "auto", (), f"data is on this machine, but not on the nodes: {IGNORED}"),
        ("data", "auto", ("*.bin",), 'to send it, add `"!data/"` to `[bootstrap] exclude`'),
        ("big.bin", "auto", ("*.bin",), "`[bootstrap] exclude` leaves big.bin out"),
        (".env", "auto", (), 'it may have a secret: to send it, set `[bootstrap] exclude = ["!.env"]`'),
        ("settings.yaml", ("train.py",), (), "name it or its folder in `[bootstrap] sync`"),
        ("data/train", ("data",), (), None),
        ("data/new/model.pt", "auto", (), "data/new/model.pt exists neither on the nodes nor in"),
        ("data/model.pt", "auto", (), "the folder data is not sent to the nodes: create it in the program"),
        ("nowhere", "auto", (), "nowhere exists neither on the nodes nor in the folder of cluster.toml"),
        ("/etc/nowhere", "auto", (), None),
        ("s3://bucket/a.idx", "auto", (), None),
        ("x" * 300, "auto", (), "x exists neither on the nodes nor"),
    ],
)
def test_advice_depends_on_this_machine(
    project: Path, path: str, sync: Any, exclude: tuple[str, ...], advice: str | None
) -> None:
    message = explain_missing(path, project_dir=project, sync=sync, exclude=exclude)
    assert (message is None) == (advice is None)
    assert (advice or "") in (message or "")


def test_the_advice_of_the_table_is_for_other_files() -> None:
    advisor = Advisor(advise_on_path=lambda path: f"ours: {path}" if path == "data" else None)
    lines = (f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'" for path in ("other", "data"))
    first, _ = (advisor.take(line(text)) for text in lines)
    assert first.startswith("other is not on the nodes")
    advisor = Advisor(advise_on_path=lambda path: f"ours: {path}")
    text = "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: 'data'"
    assert advisor.take(line(text)) == "ours: data"


@pytest.mark.parametrize(
    "text",
    [
        ' LocalFileSystem::Open "data/a.rec": No such file or directory',
        'LocalFileSystem: Check failed: allow_null: :Open "data/a.rec": No such file or directory',
        'train_mnist.py: error: LocalFileSystem: Open "data/a.rec": No such file or directory',
        "MXNetError: LocalFileSystem.ListDirectory data/a.rec error: No such file or directory",
    ],
)
def test_files_that_mxnet_does_not_find(text: str) -> None:
    assert Advisor(advise_on_path=lambda path: f"ours: {path}").take(line(text)) == "ours: data/a.rec"
