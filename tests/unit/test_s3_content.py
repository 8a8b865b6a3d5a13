"""Local files compared with what S3 says of objects: by few threads, and not for longer than somebody waits."""

import base64
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train.node import integrity
from train.s3 import content
from train.s3.content import feed
from train.s3.crew import Check, Crew, Stopped, gather
from train.s3.section import Section

SIZE = 40 * 2**20
HEADERS = {"x-amz-checksum-crc32": base64.b64encode(zlib.crc32(bytes(SIZE)).to_bytes(4, "big")).decode()}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of zeros, of five pieces each."""
    found = [tmp_path / str(number) for number in range(6)]
    for path in found:
        path.touch()
        os.truncate(path, SIZE)
    return found


class Readers:
    """How many sections of files are read at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        readers = self

        class Watched(Section):
            def blocks(self) -> Iterator[memoryview]:
                readers.add(1)
                yield from super().blocks()
                readers.add(-1)

        monkeypatch.setattr(content, "Section", Watched)

    def add(self, more: int) -> None:
        with self._lock:
            self._now += more
            self.most = max(self.most, self._now)


def find_check() -> Any:
    return integrity.find_check(HEADERS, SIZE)


def pause() -> None:
    time.sleep(0.002)


@pytest.mark.parametrize(("files", "most"), [(1, 4), (6, 9)])
def test_a_few_threads_read_pieces_of_one_file_and_few_more_those_of_many(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    readers = Readers(monkeypatch)

    def compare(path: Path, _check: Check) -> bool:
        return feed(find_check(), path, pause)

    for _ in range(2):  # who has helped one helps the next
        readers.most = 0
        assert gather(compare, paths[:files], first=6, most=6) == [True] * files
        assert files < readers.most <= most
    with paths[0].open("r+b") as file:
        file.seek(33 * 2**20)
        file.write(b"x")
    assert not feed(find_check(), paths[0], pause)


@pytest.mark.parametrize("algorithm", ["crc32", "sha256"], ids=["in pieces", "in order"])
def test_it_is_stopped(paths: list[Path], algorithm: str) -> None:
    """Also where a crew of its own reads the pieces: it must not take what was stopped for compared."""
    blocks = []
    digests = {"crc32": HEADERS, "sha256": {"x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode()}}

    def stop() -> None:
        blocks.append(None)
        if len(blocks) > 6:
            raise Stopped

    with pytest.raises(Stopped):
        feed(integrity.find_check(digests[algorithm], SIZE), paths[0], stop)
    assert len(blocks) < 20


def test_an_error_elsewhere_stops_it(paths: list[Path]) -> None:
    blocks, forgotten = [], []

    def compare(path: Path, check: Check) -> bool:
        if path is paths[0]:
            while len(blocks) < 5:
                time.sleep(0.001)
            raise ZeroDivisionError

        def go_on() -> None:
            blocks.append(None)
            until = time.monotonic() + 60
            while len(blocks) > 20:  # of 85
                check()
                if time.monotonic() > until:
                    forgotten.append(path)
                    raise Stopped
                time.sleep(0.01)

        return feed(find_check(), path, go_on)

    with pytest.raises(ZeroDivisionError):
        gather(compare, paths[:2], first=2, most=2)
    assert not forgotten


def test_where_no_helpers_are_left_it_is_read_all_the_same(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_HELPERS", threading.BoundedSemaphore(1))
    made = []
    monkeypatch.setattr(content, "Crew", lambda size: made.append(size) or Crew(size))
    with content._HELPERS:
        assert feed(find_check(), paths[0])
    assert not made
    assert feed(find_check(), paths[0])
    assert made == [2]
