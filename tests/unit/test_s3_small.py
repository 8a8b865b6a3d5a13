"""Many small files: when the fast way is believed, when it is given up, and what it takes of memory."""

import base64
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from http_server import serve_http
from project import REPOSITORY
from provision.errors import ClusterError
from provision.progress import silent
from s3_server import REGION, serve_s3_alone
from train.s3 import crew, lanes, small, transfer
from train.s3 import operations as s3
from train.s3.crew import Crew, gather
from train.s3.exchange import UnsureError
from train.s3.lanes import Talk, finish
from train.s3.plan import Upload
from train.s3.small import Room, SmallMoves, put_small
from train.s3.transfer import Unwatched, open_wire
from train.s3.url import S3Url
from train.s3.wire import Wire

CONTENT = b"content"
CRC = base64.b64encode(zlib.crc32(CONTENT).to_bytes(4, "big")).decode()
MD5 = md5(CONTENT, usedforsecurity=False).hexdigest()
MEMORY_BYTES = 128 * 10**6


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[Wire, list[str]]]:
    """A Wire to a server that gives all PUTs this answer, and what was put."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": "0", "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serve_http(Handler) as url, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT_URL": url}.items():
            patch.setenv(f"AWS_{name}", value)
        yield open_wire(region=REGION), asked


@pytest.fixture
def upload(tmp_path: Path) -> Upload:
    (tmp_path / "x").write_bytes(CONTENT)
    return Upload(source=tmp_path / "x", destination=S3Url(bucket="datasets", key="x"), size_bytes=len(CONTENT))


@pytest.mark.parametrize(
    ("headers", "is_believed"),
    [
        ({"x-amz-checksum-crc32": CRC, "ETag": '"of a KMS key"'}, True),
        ({"ETag": f'"{MD5}"'}, True),
        ({"ETag": '"of a KMS key"'}, False),
        ({}, False),
        ({"x-amz-checksum-crc32": "AAAAAA==", "ETag": f'"{MD5}"'}, False),
        ({"x-amz-checksum-crc32": "", "ETag": f'"{MD5}"'}, False),
    ],
    ids=["checksum", "md5", "neither", "nothing", "another", "empty"],
)
def test_what_is_believed(upload: Upload, headers: dict[str, str], *, is_believed: bool) -> None:
    with answering(200, headers) as (wire, asked):
        if is_believed:
            assert finish(put_small(wire, upload)) == len(CONTENT)
        else:
            with pytest.raises(UnsureError):
                finish(put_small(wire, upload))
        assert asked == ["/datasets/x"]


def test_a_file_that_is_another_now_is_not_sent(upload: Upload) -> None:
    with answering(200, {"x-amz-checksum-crc32": CRC}) as (wire, asked):
        upload.source.write_bytes(CONTENT * 2)
        with pytest.raises(UnsureError):
            finish(put_small(wire, upload))
        assert not asked


def test_a_busy_s3_is_not_asked_twice_for_every_file(upload: Upload) -> None:
    with answering(503, {}) as (wire, asked):
        moves = SmallMoves(wire)
        assert [finish(moves.move(upload)) for _ in range(200)] == [None] * 200
        assert len(asked) < 10


def test_what_is_given_up_is_done_thoroughly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy before S3, none is put by the fast way."""
    contents = {f"{number}": random.Random(number).randbytes(1000) for number in range(30)}
    (tmp_path / "local").mkdir()
    for name, content in contents.items():
        (tmp_path / "local" / name).write_bytes(content)
    with serve_s3_alone(XDG_STATE_HOME=str(tmp_path / "state")) as server:
        server.put("datasets", {})
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        s3.put([str(tmp_path / "local")], "s3://datasets/", region=REGION, report=silent, watch=lambda _: Unwatched())
        monkeypatch.delenv("http_proxy")
        assert server.read("datasets") == contents
        server.reset()


def test_what_is_left_after_a_hold_up_is_put_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "HELD_UP", -1.0)
    monkeypatch.setattr(lanes, "_JUDGE_EVERY_S", 0.0)
    by_threads = []

    def finish_by_thread(talk: Talk[None]) -> None:
        by_threads.append(threading.get_ident())
        finish(talk)

    monkeypatch.setattr(small, "finish", finish_by_thread)
    contents = {f"{number}": random.Random(number).randbytes(1000 + number) for number in range(200)}
    (tmp_path / "local").mkdir()
    for name, content in contents.items():
        (tmp_path / "local" / name).write_bytes(content)
    with serve_s3_alone(XDG_STATE_HOME=str(tmp_path / "state")) as server:
        server.put("datasets", {})
        s3.put([str(tmp_path / "local")], "s3://datasets/", region=REGION, report=silent, watch=lambda _: Unwatched())
        assert server.read("datasets") == contents
        server.reset()
    assert 0 < len(by_threads) < 200
    assert threading.get_ident() not in by_threads


def test_what_is_forgotten_is_told(upload: Upload, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is told that all is done while files are missing, whatever may be wrong with this program."""
    uploads = [replace(upload, destination=S3Url(bucket="datasets", key=f"x{number}")) for number in range(5)]
    move = small.move_side_by_side
    monkeypatch.setattr(transfer, "move_side_by_side", lambda transfers, each: move(transfers[:3], each))
    with answering(200, {"x-amz-checksum-crc32": CRC}) as (wire, asked):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        with pytest.raises(ClusterError) as caught:
            transfer.apply(wire, uploads, Unwatched())
        assert sorted(asked) == [f"/datasets/x{number}" for number in range(3)]
    first, *names = caught.value.message.splitlines()
    assert first.startswith("2 of 5 files failed")
    assert [name.split(" -> ")[1].split(": ")[0] for name in names] == ["s3://datasets/x3", "s3://datasets/x4"]


def test_room() -> None:
    room, lock = Room(100), threading.Lock()
    taken, most = 0, 0

    def take(generator: random.Random) -> None:
        nonlocal taken, most
        for _ in range(50):
            size = generator.choice([1, 10, 50, 100])
            with room.take(size):
                with lock:
                    taken += size
                    most = max(most, taken)
                time.sleep(0)
                with lock:
                    taken -= size

    threads = [threading.Thread(target=take, args=(random.Random(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (taken, most) == (0, 100)


@pytest.mark.parametrize(("most", "grows"), [(20, True), (0, False)])
def test_a_crew_grows_while_its_tasks_wait(*, most: int, grows: bool) -> None:
    lock = threading.Lock()
    at_once, seen = 0, 0

    def wait() -> None:
        nonlocal at_once, seen
        with lock:
            at_once += 1
            seen = max(seen, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1

    Crew(2, most=most).run([wait] * 150)
    assert at_once == 0
    assert seen <= max(2, most)
    assert (seen > 2) == grows


def test_a_crew_does_not_grow_while_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "BUSY", -1.0)  # whatever takes more than this of a core is busy
    seen = set()

    def work() -> None:
        seen.add(threading.get_ident())
        time.sleep(0.01)

    Crew(2, most=20).run([work] * 50)
    assert len(seen) <= 2  # one may do all before the other has begun


def test_what_is_gathered_is_in_order() -> None:
    def work(number: int, _check: Callable[[], None]) -> int:
        time.sleep(random.Random(number).random() / 100)
        if number == 99:
            raise ZeroDivisionError
        return number * 2

    assert gather(work, range(60), first=3, most=9) == [number * 2 for number in range(60)]
    assert gather(work, (), first=3, most=9) == []
    with pytest.raises(ZeroDivisionError):
        gather(work, range(200), first=3, most=9)


def test_an_error_ends_what_takes_long() -> None:
    def work(number: int, check: Callable[[], None]) -> None:
        if number == 0:
            raise ZeroDivisionError
        while True:
            check()
            time.sleep(0.01)

    with pytest.raises(ZeroDivisionError):
        gather(work, range(2), first=2, most=2)


def test_an_error_of_who_makes_the_tasks_is_told() -> None:
    def make() -> Iterator[Callable[[], None]]:
        yield lambda: None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Crew(2).run(make())


PUT = """
import sys
from pathlib import Path
from provision.progress import silent
from train.s3 import operations as s3
from train.s3.transfer import Unwatched
s3.put([sys.argv[1]], "s3://bench/x/", region="us-east-1", report=silent, watch=lambda _: Unwatched())
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("big_files", [0, 1], ids=["small", "mixed"])
def test_memory_of_many_at_once(tmp_path: Path, big_files: int) -> None:
    """The largest of the small ones, to an S3 that takes its time, so that as many are on their way as ever."""
    local = tmp_path / "local"
    local.mkdir()
    content = random.Random(1).randbytes(2**20)
    for number in range(150):
        (local / f"{number}").write_bytes(content)
    for number in range(big_files):
        (local / f"big{number}").write_bytes(content * 40)
    words = [sys.executable, "-m", "bench.s3_sink", str(local / "0"), "--latency-ms", "20"]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "XDG_STATE_HOME": str(tmp_path / "state")}
            url = f"http://127.0.0.1:{int(sink.stdout.readline())}"
            env = {**os.environ, **keys, "AWS_ENDPOINT_URL": url}
            said = subprocess.check_output(
                [sys.executable, "-c", PUT, f"{local}/"], cwd=REPOSITORY, env=env, text=True, timeout=60
            )
        finally:
            sink.terminate()
    assert int(said) * 1024 < MEMORY_BYTES
