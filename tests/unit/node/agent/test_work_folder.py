"""A job's working folder on a host: a copy of its files, and what the job adds to it."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node import job_folder
from node.agent import work_folder
from node.protocol import NewFiles


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A placed tree. The home folder is `tmp_path`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cluster" / "tree" / "ab"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("train")
    (folder / "lib" / "run.sh").write_text("run")
    (folder / "lib" / "run.sh").chmod(0o755)
    (folder / ".complete").touch()
    return folder


def place(tree: Path | None, job: str = "j") -> Path:
    cwd = job_folder.path(job, "work")
    work_folder.place(job, cwd, None if tree is None else str(tree))
    return Path(cwd)


def write(path: Path, mtime: float | None = None) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, None if mtime is None else (mtime, mtime))


def new(job: str = "j") -> dict[str, str | None]:
    return {entry.name: entry.what for entry in work_folder.find_new(job) if entry is not None}


def test_the_files_are_copied_and_not_linked(tree: Path) -> None:
    work = place(tree)
    assert sorted(str(path.relative_to(work)) for path in work.rglob("*")) == [
        "lib", "lib/empty", "lib/run.sh", "train.py"
    ]  # fmt: skip
    assert os.access(work / "lib" / "run.sh", os.X_OK)
    assert (work / "train.py").stat().st_mtime_ns == (tree / "train.py").stat().st_mtime_ns
    (work / "train.py").write_text("overwritten")
    assert (tree / "train.py").read_text() == "train"


def test_the_next_attempt_finds_what_the_job_wrote(tree: Path) -> None:
    work = place(tree)
    (work / "train.py").write_text("changed")
    (work / "checkpoint").touch()
    place(tree)
    assert ((work / "train.py").read_text(), new()) == ("changed", {"train.py": None, "checkpoint": None})


def test_an_attempt_waits_for_the_copy_of_another_host(tree: Path) -> None:
    """Hosts may share the home folder, and locks do not reach over NFS."""
    claim = Path(job_folder.path("j", "placing-1"))
    claim.parent.mkdir(parents=True)
    claim.touch()
    waiting = threading.Thread(target=place, args=(tree,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    claim.write_text("placed")
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_full_disk_is_named_and_gets_its_space_back(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "sendfile", fail)
    monkeypatch.setattr(os, "copy_file_range", fail)  # since Python 3.14
    with pytest.raises(OSError, match="No space left on device") as caught:
        place(tree)
    assert job_folder.describe(caught.value).startswith(f"No space left on device ({job_folder.path('j', 'work')}/")
    assert not Path(job_folder.path("j", "work")).exists()


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda work: (work / "lib" / "a b\n").touch(), {"lib/a b\n": None}),
        (lambda work: (work / "train.py").write_text("TRAIN"), {"train.py": None}),
        (lambda work: (work / "lib" / "run.sh").rename(work / "moved"), {"moved": None}),
        (lambda work: (work / "latest").symlink_to("/"), {"latest": "a link"}),
        (lambda work: os.mkfifo(work / "pipe"), {"pipe": "no file"}),
        (lambda work: (work / "__pycache__").mkdir() or (work / "__pycache__" / "m.pyc").touch(), {}),
        (lambda work: write(work.parent / "output" / "s3" / "net"), {"output/s3/net": None}),
        (lambda work: write(work.parent / "output" / "old", mtime=1), {"output/old": None}),
        (lambda work: write(work.parent / "output" / "s3" / "old", mtime=1), {}),  # what S3 has had before
    ],
)
def test_what_a_job_has_created(tree: Path, write: Callable[[Path], object], found: dict[str, str | None]) -> None:
    write(place(tree))
    assert new() == found


def test_a_replaced_node_has_what_earlier_attempts_have_saved(tree: Path) -> None:
    work_folder.place("j", job_folder.path("j", "work"), str(tree), attempt=2)
    write(Path(job_folder.path("j", "output/s3/net")), mtime=1)
    assert new() == {"output/s3/net": None}


def test_files_of_jobs_before_in_the_users_own_folder_are_not_the_jobs(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "older").touch()
    work_folder.place("j", str(tmp_path / "shared"), str(tree))
    (tmp_path / "shared" / "mine").touch()
    assert new() == {"mine": None}


def not_in_s3(_: work_folder.Entry) -> bool:
    return False


def test_the_summary(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = place(tree)
    for name in ("a", "out/b", "out/c/d", "e/f", "g/h"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).touch()
    found = work_folder.count_new("j", "node-1", not_in_s3)
    assert (found.count, found.is_part, "" in found.folders, len(found.folders)) == (5, False, True, 3)
    found = work_folder.count_new("j", "node-1", lambda entry: entry.name in ("a", "e/f"))
    assert (found.count, found.copied, "" in found.folders) == (3, 2, False)
    (work / "bad\x1b\n").mkdir()
    (work / "bad\x1b\n" / "i").touch()
    monkeypatch.setattr(work_folder, "MOST_FOLDERS", 9)
    assert "bad??/" in work_folder.count_new("j", "node-1", not_in_s3).folders
    monkeypatch.setattr(work_folder, "MOST_ENTRIES", 4)
    assert work_folder.count_new("j", "node-1", not_in_s3).is_part
    assert work_folder.count_new("never", "node-1", not_in_s3) == NewFiles(host="node-1", count=0)
