"""Proxies for a test's S3 that damage the traffic."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from http_server import Asked, judging_proxy


@dataclass(slots=True)
class Cuts:
    """How many more responses to cut off, and after how many bytes."""

    left: int
    after_bytes: int
    done: int = 0


@contextmanager
def cutting_proxy(target_url: str, cuts: Cuts) -> Iterator[str]:
    """The URL of a proxy that closes connections in the middle of long responses, `cuts.left` times."""

    def cut(_: Asked, body: bytes) -> bytes:
        if cuts.left <= 0 or len(body) <= cuts.after_bytes:
            return body
        cuts.left -= 1
        cuts.done += 1
        return body[: cuts.after_bytes]

    with judging_proxy(target_url, change=cut) as proxy:
        yield proxy.url
