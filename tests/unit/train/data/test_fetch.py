"""Downloads from good and bad servers, and the folder of the dataset."""

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from folders import read_files
from foundation.errors import ClusterError
from foundation.progress import Event, silent
from http_server import serve_http
from train.data import fetch as fetching
from train.data.datasets import Dataset, Source, Written
from train.data.fetch import fetched
from train.data.work import move_files

CONTENT = random.Random(7).randbytes(1_000_000)
Responder = Callable[[BaseHTTPRequestHandler, bytes], None]


@dataclass(slots=True)
class Mirror:
    """A server of files. answers: handlers that are used in turn instead of sending the requested file."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Responder] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                content = mirror.files.get(self.path.removeprefix("/"))
                if content is None:
                    self.send_error(404)
                    return
                (mirror.answers.pop(0) if mirror.answers else give)(self, content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def give(handler: BaseHTTPRequestHandler, content: bytes, *, most: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[:most])


def cut(after_bytes: int) -> Responder:
    return lambda handler, content: give(handler, content, most=after_bytes)


def give_all(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)


def page(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    give_all(handler, b"<html>moved")


def give_another(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    give_all(handler, b"x" * len(content))


def give_more(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    give_all(handler, content + b"x" * 100)


def refuse(status: int) -> Responder:
    return lambda handler, _: handler.send_error(status)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)


@pytest.fixture
def mirrors() -> Iterator[list[Mirror]]:
    made = [Mirror(), Mirror()]
    with ExitStack() as stack:
        for mirror in made:
            mirror.url = stack.enter_context(serve_http(mirror.handler()))
        yield made


def source(mirrors: list[Mirror], name: str, content: bytes) -> Source:
    for mirror in mirrors:
        mirror.files[name] = content
    return Source(
        name=name,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        mirrors=tuple(mirror.url for mirror in mirrors),
    )


def load(wanted: Source, folder: Path, events: list[Event]) -> int:
    """Downloads a file; returns the number of bytes that were reported."""
    reported: list[int] = []
    fetching.download(wanted, folder, report=events.append, advance=reported.append)
    return sum(reported)


@pytest.mark.parametrize(
    ("first", "asked", "warned"),
    [
        ([], (1, 0), None),
        ([cut(400_000)], (1, 1), "ended after 400000 of 1000000 bytes"),
        ([refuse(503)], (1, 1), "503 Service Unavailable"),
        ([give_another], (1, 1), "not the published file"),
        ([give_more], (1, 1), "not the published file"),
    ],
)
def test_mirrors(
    mirrors: list[Mirror],
    tmp_path: Path,
    *,
    first: list[Responder],
    asked: tuple[int, int],
    warned: str | None,
) -> None:
    events: list[Event] = []
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].answers = list(first)
    reported = load(wanted, tmp_path, events)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert tuple(len(mirror.asked) for mirror in mirrors) == asked
    assert reported == len(CONTENT)
    assert [warned in event.what for event in events] == [True] if warned else not events


def test_the_error_of_each_mirror_is_shown(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].files.clear()
    mirrors[1].answers = [refuse(503)] * fetching.ROUNDS
    with pytest.raises(ClusterError) as caught:
        fetching.download(wanted, tmp_path, report=silent, advance=lambda _: None)
    assert f"{mirrors[0].url}/file: 404 Not Found" in caught.value.message
    assert f"{mirrors[1].url}/file: 503 Service Unavailable" in caught.value.message


def test_unreachable_mirrors_are_skipped(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    wanted = replace(wanted, mirrors=("http://127.0.0.1:9", *wanted.mirrors))
    events: list[Event] = []
    load(wanted, tmp_path, events)
    assert "refused" in events[0].what


def test_reuse(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    (tmp_path / "file.part").write_bytes(b"left by a killed run")
    assert load(wanted, tmp_path, []) == load(wanted, tmp_path, []) == len(CONTENT)
    assert mirrors[0].asked == ["/file"]
    (tmp_path / "file").write_bytes(b"x")
    load(wanted, tmp_path, [])
    assert (tmp_path / "file").read_bytes() == CONTENT


# --- the folder of the dataset


def make_dataset(mirrors: list[Mirror]) -> Dataset:
    """A dataset with one source, whose content is written to two files."""

    def write(sources: Path, folder: Path, shards: int) -> Written:
        content = (sources / "file").read_bytes()
        (folder / "train").mkdir()
        for name in ("train/a", "b"):
            (folder / name).write_bytes(content)
        return Written(train_images=shards, val_images=0, files={"train/a": len(content), "b": len(content)})

    return Dataset(name="test", title="", sources=(source(mirrors, "file", CONTENT),), write=write, shards=2)


def run(dataset: Dataset, tmp_path: Path, *, shards: int | None = None) -> Written:
    folder, cache = tmp_path / "out", tmp_path / "cache"
    made = fetched(dataset, folder, shards=shards, cache=cache, report=silent, advance=lambda _: None)
    with made as (work, written):
        move_files({name: work / name for name in written.files}, folder)
    return written


def test_a_second_fetch_downloads_nothing(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset, expected = make_dataset(mirrors), {"train/a": CONTENT, "b": CONTENT}
    assert run(dataset, tmp_path).train_images == dataset.shards
    assert read_files(tmp_path / "out") == expected
    (tmp_path / "out" / ".cluster-fetch" / "left").mkdir(parents=True)  # left by a killed run
    assert run(dataset, tmp_path, shards=5).train_images == 5
    assert read_files(tmp_path / "out") == expected
    assert len(mirrors[0].asked) == 1
    assert not (tmp_path / "out" / ".cluster-fetch").exists()


def test_a_failed_fetch_leaves_nothing(mirrors: list[Mirror], tmp_path: Path) -> None:
    def write(_sources: Path, folder: Path, _shards: int) -> Written:
        (folder / "begun").touch()
        raise ClusterError("not a whole gzip file")

    with pytest.raises(ClusterError, match="not a whole gzip file"):
        run(replace(make_dataset(mirrors), write=write), tmp_path)
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset = make_dataset(mirrors)
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(ClusterError, match=r"test cannot be written: .*out.*: Not a directory"):
        run(dataset, tmp_path)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(ClusterError, match=r"test cannot be written: .*cache"):
        run(dataset, tmp_path)
