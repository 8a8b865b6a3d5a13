"""The page of `cluster watch --web`: for this machine, and for whoever knows its address."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from cluster.watch.web import LivePage, make_server
from foundation.errors import ConnectError


@contextmanager
def served(page: LivePage) -> Iterator[str]:
    server, url = make_server(page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(url: str, path: str | None = None) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.putrequest("GET", parts.path if path is None else path, skip_accept_encoding=True)
    connection.endheaders()
    return connection.getresponse()


def test_only_the_token_shows_the_page() -> None:
    with served(LivePage(lambda: ("<p>page é", False))) as url:
        assert urlsplit(url).hostname == "127.0.0.1"
        answer = get(url)
        assert (answer.status, answer.read().decode()) == (200, "<p>page é")
        assert answer.headers["Refresh"] == "5"
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        token = urlsplit(url).path
        for path in ("/", token[:-1], f"{token}x", token.swapcase(), "/%00/", "/?a", "//"):
            answer = get(url, path)
            assert answer.status == 404
            assert b"page" not in answer.read()
    with served(LivePage(lambda: ("", False))) as other:
        assert urlsplit(other).path != token


def test_pages_are_rendered_again_until_the_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter([("first", False), ("second", True), ("third", True)])
    page = LivePage(lambda: next(pages))
    assert page.read() == page.read() == ("first", False)
    monkeypatch.setattr(page, "_at", 0.0)
    assert page.read() == ("second", True)
    monkeypatch.setattr(page, "_at", 0.0)
    with served(page) as url:
        answer = get(url)
        assert (answer.read(), answer.headers["Refresh"]) == (b"second", None)


def test_an_error_is_on_the_page() -> None:
    def fail() -> tuple[str, bool]:
        raise ConnectError("node-0 <script>does not answer")

    page = LivePage(fail)
    text, is_final = page.read()
    assert "node-0 &lt;script&gt;does not answer" in text
    assert not is_final
