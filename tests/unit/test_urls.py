"""Files from URLs, as nodes take them: a real server over HTTP and HTTPS, which breaks off, refuses and lies."""

import hashlib
import random
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from index_server import Index, serve_index

sys.path.insert(0, str(Path(__file__).parents[2] / "bootstrap" / "node"))  # by path, as on the nodes

import store
import urls

DATA = random.Random(6).randbytes(100_000)
NAME = "thing-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Seven ranges for one file."""
    monkeypatch.setattr(urls, "PART_BYTES", 16_000)
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


@pytest.mark.parametrize("trouble", ["none", "failing", "cutting", "no ranges", "no ranges, cutting"])
def test_a_file_arrives_whole_whatever_the_server_does(tmp_path: Path, index: Index, trouble: str) -> None:
    index.failing = 3 if trouble == "failing" else 0
    index.cutting = 3 if "cutting" in trouble else 0
    index.ranges = "no ranges" not in trouble
    arriving = arrive(tmp_path / "home")
    urls.fetch([f"{index.url}/files/{NAME}"], arriving, None)
    assert_whole(arriving)
    if trouble == "none":
        assert sorted(index.asked_for(NAME)) == sorted(
            f"bytes={begin}-{min(begin + 16_000, 100_000) - 1}" for begin in range(0, 100_000, 16_000)
        )


@pytest.mark.parametrize("ranges", [True, False])
def test_what_is_there_already_is_not_taken_again(tmp_path: Path, index: Index, *, ranges: bool) -> None:
    index.ranges = ranges
    begun = arrive(tmp_path / "home")
    begun.append(DATA[:70_001], 0)
    arriving = arrive(tmp_path / "home")
    assert arriving.have == 70_001
    urls.fetch([f"{index.url}/files/{NAME}"], arriving, None)
    assert_whole(arriving)
    if ranges:
        assert sorted(index.asked_for(NAME)) == ["bytes=70001-86000", "bytes=86001-99999"]


def test_the_next_url_is_tried_and_what_came_is_kept(tmp_path: Path, index: Index) -> None:
    arriving = arrive(tmp_path / "home")
    urls.fetch([f"{index.url}/files/none.whl", "file:///etc/passwd", f"{index.url}/files/{NAME}"], arriving, None)
    assert_whole(arriving)


def test_what_came_is_damaged(tmp_path: Path, index: Index) -> None:
    index.flip = True
    arriving = arrive(tmp_path / "home")
    with pytest.raises(store.Damaged):
        urls.fetch([f"{index.url}/files/{NAME}"], arriving, None)
    assert (arriving.have, arriving.whole) == (0, False)
    index.flip = False
    urls.fetch([f"{index.url}/files/{NAME}"], arriving, None)
    assert_whole(arriving)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"), "HTTP 403 AccessDenied"),
        ((404, b"not here"), "HTTP 404 Not Found"),
        ((503, b""), "HTTP 503 Service Unavailable"),
    ],
)
def test_a_refusal_is_told_without_the_secret_in_the_url(
    tmp_path: Path, index: Index, refusal: tuple[int, bytes], said: str
) -> None:
    index.refusal = refusal
    with pytest.raises(urls.Unreachable) as raised:
        urls.fetch([f"{index.url}/files/{NAME}?X-Amz-Signature=secret"], arrive(tmp_path / "home"), None)
    assert str(raised.value) == f"{index.url}/files/{NAME}: {said}"
    tries = len(index.asked_for("secret"))
    assert tries > urls.AT_ONCE if refusal[0] == 503 else tries <= urls.AT_ONCE


def test_a_server_that_never_answers_is_given_up_when_it_is_probed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/files/{NAME}"
        with pytest.raises(urls.Unreachable, match=r"no answer in 0\.1 s|timed out"):
            urls.fetch([address], arrive(tmp_path / "home"), None, 0.1)


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(urls.Unreachable, match="Connection refused"):
        urls.fetch([f"http://127.0.0.1:{port}/x"], arrive(tmp_path / "home"), None, 1.0)


def test_a_private_authority_has_to_be_told(tmp_path: Path, index: Index) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serve_index(index.folder, tls=context) as secure:
        address = f"{secure.url}/files/{NAME}"
        with pytest.raises(urls.Unreachable, match="certificate verify failed"):
            urls.fetch([address], arrive(tmp_path / "home"), None, 5.0)
        arriving = arrive(tmp_path / "home")
        urls.fetch([address], arriving, authority.cert_pem.bytes().decode(), 5.0)
    assert_whole(arriving)


def test_the_authorities_that_a_node_knows_stay_known() -> None:
    """create_default_context does not load them when it is given others."""
    authority = trustme.CA()
    context = urls.make_context(authority.cert_pem.bytes().decode())
    assert len(context.get_ca_certs()) == len(urls.make_context(None).get_ca_certs()) + 1
