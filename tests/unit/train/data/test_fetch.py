"""Downloads from good and bad servers, and the folder of the dataset."""

import errno
import hashlib
import random
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment import fetches
from bootstrap.environment.file_cache import BundleFile
from folders import read_files
from foundation.errors import ClusterError
from foundation.progress import silent
from train.data.datasets import Dataset, Written
from train.data.fetch import download, fetched
from train.data.work import move_files

CONTENT = random.Random(7).randbytes(1_000_000)
A, B = "https://a.example/file", "https://b.example/file"


@dataclass(slots=True)
class Mirrors:
    """Two servers. answers: by URL, what is sent instead of CONTENT. asked: the URLs so far."""

    answers: dict[str, bytes | OSError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def open(self, url: str) -> BytesIO:
        self.asked.append(url)
        answer = self.answers.get(url, CONTENT)
        if isinstance(answer, OSError):
            raise answer
        return BytesIO(answer)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Mirrors:
    made = Mirrors()
    monkeypatch.setattr(fetches, "open_url", made.open)
    monkeypatch.setattr(fetches, "FIRST_PAUSE_S", 0.0)
    return made


SOURCE = BundleFile(path=Path("file"), size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(), urls=(A, B))


def load(folder: Path) -> int:
    reported: list[int] = []
    download(SOURCE, folder, advance=reported.append)
    return sum(reported)


@pytest.mark.parametrize(
    "first", [CONTENT[:400_000], OSError("503"), b"x" * len(CONTENT)], ids=["cut", "refused", "another"]
)
def test_the_next_mirror_is_asked(mirrors: Mirrors, tmp_path: Path, first: bytes | OSError) -> None:
    mirrors.answers[A] = first
    assert load(tmp_path) == len(CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert mirrors.asked == [A, B]


def test_the_error_of_each_mirror_is_shown(mirrors: Mirrors, tmp_path: Path) -> None:
    mirrors.answers = {url: OSError(f"no {number}") for number, url in enumerate((A, B))}
    with pytest.raises(ClusterError) as caught:
        load(tmp_path)
    assert f"{A}: no 0\n" in caught.value.message
    assert f"{B}: no 1" in caught.value.message


def test_a_full_disk_is_no_fault_of_a_mirror(mirrors: Mirrors, tmp_path: Path) -> None:
    mirrors.answers[A] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ClusterError, match=f"^{tmp_path}: .*No space left") as caught:
        load(tmp_path)
    assert caught.value.hint == "free some space there"
    assert mirrors.asked == [A]


def test_a_file_that_is_there_is_not_downloaded(mirrors: Mirrors, tmp_path: Path) -> None:
    (tmp_path / ".new-killed").write_bytes(b"left by a killed run")
    assert load(tmp_path) == load(tmp_path) == len(CONTENT)
    assert mirrors.asked == [A]
    (tmp_path / "file").write_bytes(b"x")
    load(tmp_path)
    assert (tmp_path / "file").read_bytes() == CONTENT


def write(sources: Path, folder: Path, shards: int) -> Written:
    content = (sources / "file").read_bytes()
    (folder / "train").mkdir()
    for name in ("train/a", "b"):
        (folder / name).write_bytes(content)
    return Written(train_images=shards, val_images=0, files={"train/a": len(content), "b": len(content)})


DATASET = Dataset(name="test", title="", sources=(SOURCE,), write=write, shards=2)


def run(dataset: Dataset, tmp_path: Path, *, shards: int | None = None) -> Written:
    folder, cache = tmp_path / "out", tmp_path / "cache"
    made = fetched(dataset, folder, shards=shards, cache=cache, report=silent, advance=lambda _: None)
    with made as (work, written):
        move_files({name: work / name for name in written.files}, folder)
    return written


def test_a_second_fetch_downloads_nothing(mirrors: Mirrors, tmp_path: Path) -> None:
    expected = {"train/a": CONTENT, "b": CONTENT}
    assert run(DATASET, tmp_path).train_images == DATASET.shards
    assert read_files(tmp_path / "out") == expected
    (tmp_path / "out" / ".cluster-fetch" / "left").mkdir(parents=True)  # left by a killed run
    assert run(DATASET, tmp_path, shards=5).train_images == 5
    assert read_files(tmp_path / "out") == expected
    assert mirrors.asked == [A]
    assert not (tmp_path / "out" / ".cluster-fetch").exists()


def test_a_failed_fetch_leaves_nothing(mirrors: Mirrors, tmp_path: Path) -> None:
    def fail(_sources: Path, folder: Path, _shards: int) -> Written:
        (folder / "begun").touch()
        raise ClusterError("not a whole gzip file")

    with pytest.raises(ClusterError, match="not a whole gzip file"):
        run(replace(DATASET, write=fail), tmp_path)
    assert not list((tmp_path / "out").iterdir())
