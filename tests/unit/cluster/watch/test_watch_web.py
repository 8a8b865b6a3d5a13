"""The page of `cluster watch --web`: for this machine, and for whoever knows its address."""

import asyncio
import http.client
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from cluster.watch import web
from cluster.watch.web import serve
from foundation.errors import ConnectError


@contextmanager
def served(render: Callable[[], tuple[str, bool]]) -> Iterator[str]:
    urls: queue.Queue[str] = queue.Queue()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(serve(render, urls.put))
        thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
        thread.start()
        try:
            yield urls.get(timeout=60)
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()


def get(url: str, path: str | None = None) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.putrequest("GET", parts.path if path is None else path, skip_accept_encoding=True)
    connection.endheaders()
    return connection.getresponse()


def test_only_the_token_shows_the_page() -> None:
    with served(lambda: ("<p>page é", False)) as url:
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
    with served(lambda: ("", False)) as other:
        assert urlsplit(other).path != token


def test_pages_are_rendered_again_until_the_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter([("first", False), ("second", True), ("third", True)])
    with served(lambda: next(pages)) as url:
        assert [get(url).read(), get(url).read()] == [b"first", b"first"]
    monkeypatch.setattr(web, "REFRESH_S", 0)
    pages = iter([("first", False), ("second", True), ("third", True)])
    with served(lambda: next(pages)) as url:
        answers = [get(url) for _ in range(3)]
        assert [answer.read() for answer in answers] == [b"first", b"second", b"second"]
        assert [answer.headers["Refresh"] for answer in answers] == ["0", None, None]


def test_an_error_is_on_the_page() -> None:
    def fail() -> tuple[str, bool]:
        raise ConnectError("node-0 <script>does not answer")

    with served(fail) as url:
        answer = get(url)
        assert b"node-0 &lt;script&gt;does not answer" in answer.read()
        assert answer.headers["Refresh"] is not None


def test_ctrl_c_does_not_wait_for_a_page() -> None:
    """Such as for one whose head does not answer."""
    begun, released = threading.Event(), threading.Event()

    def render() -> tuple[str, bool]:
        begun.set()
        released.wait()
        return "", False

    with served(render) as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc)
        connection.request("GET", parts.path)
        assert begun.wait(60)
    released.set()
    connection.close()
