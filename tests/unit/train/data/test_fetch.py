"""Downloads from good and bad servers, and the folder of the dataset."""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from folders import read_files
from foundation.errors import ClusterError
from foundation.progress import Event, silent
from http_server import serve_http
from train.data import fetch as fetching
from train.data.datasets import Dataset, Source, Written
from train.data.fetch import fetch, move_into, workplace

CONTENT = random.Random(7).randbytes(1_000_000)
Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


@dataclass(slots=True)
class Mirror:
    """A server of files. answers: handlers that are used in turn instead of sending the requested file."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers["Range"]))
                content = mirror.files.get(self.path.removeprefix("/"))
                if content is None:
                    self.send_error(404)
                    return
                (mirror.answers.pop(0) if mirror.answers else give)(self, content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def give(handler: BaseHTTPRequestHandler, content: bytes, *, most: int | None = None) -> None:
    begin = int((handler.headers["Range"] or "bytes=0-")[len("bytes=") : -1])
    handler.send_response(206 if begin else 200)
    handler.send_header("Content-Length", str(len(content) - begin))
    handler.end_headers()
    handler.wfile.write(content[begin:][:most])


def cut(after_bytes: int) -> Answer:
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


def refuse(status: int) -> Answer:
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
        ([], ([None], []), None),
        # After a broken connection, the next mirror is asked for the rest.
        ([cut(400_000)], ([None], ["bytes=400000-"]), "ended after 400000 of 1000000 bytes"),
        ([refuse(503)], ([None], [None]), "503 Service Unavailable"),
        # A different file.
        ([give_another], ([None], [None]), "not the published file"),
        ([give_more], ([None], [None]), "not the published file"),
    ],
)
def test_mirrors(
    mirrors: list[Mirror],
    tmp_path: Path,
    *,
    first: list[Answer],
    asked: tuple[list[str | None], list[str | None]],
    warned: str | None,
) -> None:
    events: list[Event] = []
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].answers = list(first)
    reported = load(wanted, tmp_path, events)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert tuple([ranges for _, ranges in mirror.asked] for mirror in mirrors) == asked
    assert reported == len(CONTENT)
    assert [warned in event.what for event in events] == [True] if warned else not events


def test_a_server_without_ranges_and_an_error_page(mirrors: list[Mirror], tmp_path: Path) -> None:
    """The page looks like the beginning of the file until its end; the whole file follows in the second round."""
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].answers = [cut(400_000), give_all]
    mirrors[1].answers = [refuse(404)]
    assert load(wanted, tmp_path, []) == len(CONTENT)
    assert mirrors[0].asked == [("/file", None), ("/file", "bytes=400000-")]
    (tmp_path / "file").unlink()
    mirrors[0].answers = [page]
    assert load(wanted, tmp_path, []) == len(CONTENT)
    assert (tmp_path / "file").read_bytes() == CONTENT


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


def test_resume_and_reuse(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    (tmp_path / "file.part").write_bytes(CONTENT[:700_000])
    assert load(wanted, tmp_path, []) == load(wanted, tmp_path, []) == len(CONTENT)
    assert mirrors[0].asked == [("/file", "bytes=700000-")]
    (tmp_path / "file").write_bytes(b"x")
    load(wanted, tmp_path, [])
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_another_file_is_discarded(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    (tmp_path / "file.part").write_bytes(b"x" * 700_000)
    assert load(wanted, tmp_path, []) == len(CONTENT)
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
    folder = tmp_path / "out"
    with workplace(folder) as work:
        made = fetch(dataset, work, shards=shards, cache=tmp_path / "cache", report=silent, advance=lambda _: None)
        move_into(made, work, folder)
    return made


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
    with pytest.raises(ClusterError, match="out cannot be written to: Not a directory"):
        run(dataset, tmp_path)
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(ClusterError, match=r"test cannot be written: .*cache"), workplace(tmp_path / "new") as work:
        fetch(dataset, work, shards=1, cache=tmp_path / "cache", report=silent, advance=lambda _: None)
