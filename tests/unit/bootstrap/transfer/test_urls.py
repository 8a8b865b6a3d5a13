"""Nodes' downloads from a real HTTP server that breaks off, refuses, and sends wrong bytes."""

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from index_server import Index, serve_index

sys.path.insert(0, str(Path(__file__).parents[4] / "node" / "setup"))  # by path, as on the nodes

import store
import urls

DATA = random.Random(6).randbytes(100_000)
NAME = "thing-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(urls, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / NAME).write_bytes(DATA)
    with serve_index(tmp_path / "wheels") as served:
        yield served


def arrive(home: Path, data: bytes = DATA) -> Any:
    return store.Arriving(str(home), hashlib.sha256(data).hexdigest(), NAME, len(data))


def assert_whole(arriving: Any) -> None:
    assert arriving.whole
    assert Path(arriving.path).read_bytes() == DATA


@pytest.mark.parametrize("trouble", ["failing, cutting", "no ranges, cutting"])
def test_downloads_survive_server_faults(tmp_path: Path, index: Index, trouble: str) -> None:
    index.failing = 1 if "failing" in trouble else 0
    index.cutting = 2
    index.ranges = "no ranges" not in trouble
    arriving = arrive(tmp_path / "home")
    urls.fetch([f"{index.url}/files/{NAME}"], arriving)
    assert_whole(arriving)


def test_the_next_url_is_tried(tmp_path: Path, index: Index) -> None:
    arriving = arrive(tmp_path / "home")
    urls.fetch([f"{index.url}/files/none.whl", "file:///etc/passwd", f"{index.url}/files/{NAME}"], arriving)
    assert_whole(arriving)


def test_a_damaged_download_starts_again(tmp_path: Path, index: Index) -> None:
    index.flip = True
    arriving = arrive(tmp_path / "home")
    with pytest.raises(store.Damaged):
        urls.fetch([f"{index.url}/files/{NAME}"], arriving)
    assert (arriving.have, arriving.whole) == (0, False)
    index.flip = False
    urls.fetch([f"{index.url}/files/{NAME}"], arriving)
    assert_whole(arriving)


@pytest.mark.parametrize(
    ("refusal", "message"), [((403, b"no"), "HTTP 403 Forbidden"), ((503, b""), "HTTP 503 Service Unavailable")]
)
def test_errors_hide_the_secret_in_the_url(
    tmp_path: Path, index: Index, refusal: tuple[int, bytes], message: str
) -> None:
    index.refusal = refusal
    with pytest.raises(urls.Stuck) as raised:
        urls.fetch([f"{index.url}/files/{NAME}?X-Amz-Signature=secret"], arrive(tmp_path / "home"))
    assert str(raised.value) == f"{index.url}/files/{NAME}: {message}"
    assert len(index.asked_for("secret")) == (urls.TRIES if refusal[0] == 503 else 1)
