"""What a put sends, counted where it arrives."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.progress import silent
from http_server import Proxy, judging_proxy
from s3_server import REGION, S3Server, serve_s3_alone
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES, SMALL_BYTES

URL = "s3://datasets/d/"
SIZES = {"empty": 0, "small": 1000, "middle": SMALL_BYTES + 1, "large": PART_BYTES * 2 + 1}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with serve_s3_alone(XDG_STATE_HOME=str(tmp_path / "state")) as server:
        server.put("datasets", {})
        yield server
        server.reset()


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with judging_proxy(server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def put(*sources: Path) -> None:
    words = [f"{source}/" if source.is_dir() else str(source) for source in sources]
    s3.put(words, URL, region=REGION, report=silent)


def test_a_second_put_sends_no_byte(proxy: Proxy, tmp_path: Path) -> None:
    generator = random.Random(6)
    local = tmp_path / "local"
    local.mkdir()
    for name, size in SIZES.items():
        (local / name).write_bytes(generator.randbytes(size))
    put(local)
    first = list(proxy.asked)
    sent = sum(asked.size_bytes for asked in first if asked.method == "PUT")
    assert sent == sum(SIZES.values())

    for sources in ([local], [local / "large"], [local / "small"]):
        put(*sources)
    second = proxy.asked[len(first) :]
    assert {asked.method for asked in second} <= {"GET", "HEAD"}
    assert sum(asked.size_bytes for asked in second) == 0

    # Nor does a date count; one byte does, and then that file alone is sent.
    (local / "large").touch()
    content = bytearray((local / "small").read_bytes())
    content[500] ^= 1
    (local / "small").write_bytes(content)
    put(local)
    third = proxy.asked[len(first) + len(second) :]
    assert [(asked.path, asked.size_bytes) for asked in third if asked.size_bytes] == [("/datasets/d/small", 1000)]
