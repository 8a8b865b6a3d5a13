"""Staging on a node: the real stage.py, against moto's S3 and with network faults."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from http_server import Asked, Refusal, judging_proxy
from node.staging import cache, fetch, stage
from s3_server import S3Server, serve_s3_alone
from stage_steps import Stage, find_held, find_left, staging

FOLDER = "s3://data/train/"
SIZES = (300_000, 4, 1_000_004, 40_000)
SHARDS = {f"train/s-{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(SIZES)}
MIDDLING = random.Random(8).randbytes(1_000_000)
LARGE = random.Random(9).randbytes(fetch.RANGE_BYTES * 2 + 12)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        others = {"train/": b"", "train/sub/x": b"no", "large": LARGE, "other/mid": MIDDLING, "odd/a;b#c?": b"odd"}
        server.put("data", SHARDS | others)
        yield server


@dataclass(slots=True)
class Faults:
    """The faults of a proxy.

    refuse, cut, flip: how many more answers to GETs of ranges it refuses, cuts off or damages by a bit.
    asked: the requests so far, as "METHOD PATH".
    """

    refuse: int = 0
    cut: int = 0
    flip: int = 0
    pause_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: str) -> bool:
        with self.lock:
            left: int = getattr(self, kind)
            setattr(self, kind, max(left - 1, 0))
            return left > 0

    def judge(self, asked: Asked) -> Refusal | None:
        self.asked.append(f"{asked.method} {asked.path}")
        busy = Refusal(status=503, code="SlowDown", message="Please reduce your request rate.")
        return busy if asked.of_range and self.take("refuse") else None

    def change(self, asked: Asked, body: bytes) -> bytes:
        time.sleep(self.pause_s)
        if asked.of_range and self.take("cut"):
            return body[: len(body) // 2]
        return body[:-1] + bytes([body[-1] ^ 1]) if asked.of_range and self.take("flip") else body


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def proxy(server: S3Server, faults: Faults) -> Iterator[str]:
    with judging_proxy(server.url, faults.judge, faults.change) as proxy:
        yield proxy.url


def test_uris_as_mxnet_reads_them(server: S3Server, tmp_path: Path) -> None:
    with staging(server.url, tmp_path) as stage:
        assert stage.read(FOLDER) == list(SHARDS.values())
        assert stage.read("s3://data/train") == list(SHARDS.values())
        assert stage.read(r"s3://data/train/s-[02]\.rec") == [SHARDS["train/s-0.rec"], SHARDS["train/s-2.rec"]]
        assert stage.read("s3://data/train/s-3.rec;s3://data/train/s-1.rec#cache") == [
            SHARDS["train/s-3.rec"],
            SHARDS["train/s-1.rec"],
        ]
        assert stage.read("s3://data/large") == [LARGE]
        assert stage.read("s3://data/odd/") == [b"odd"]
    assert find_left(tmp_path) == []


def test_only_the_shards_of_a_part_are_fetched(server: S3Server, tmp_path: Path) -> None:
    with staging(server.url, tmp_path) as stage:
        paths = stage.ask(FOLDER, (1, 3))["path"].split(";")
        assert [Path(path).stat().st_size for path in paths] == list(SIZES)
        assert Path(paths[2]).read_bytes() == SHARDS["train/s-2.rec"]
        # The other files are placeholders, which cannot be read.
        assert [Path(path).stat().st_mode & 0o777 for path in paths] == [0, 0, 0o400, 0]
        assert sum(path.stat().st_blocks for path in (tmp_path / "users").rglob("*") if path.name != "keys") < 64
    assert find_held(tmp_path) == SIZES[2]


def test_the_next_job_reuses_the_cache(proxy: str, faults: Faults, tmp_path: Path) -> None:
    for _ in range(2):
        with staging(proxy, tmp_path) as stage:
            stage.read(FOLDER)
    assert len([asked for asked in faults.asked if asked.endswith(".rec")]) == len(SHARDS)


def test_an_overwritten_object_is_fetched_again(server: S3Server, tmp_path: Path) -> None:
    server.put("changing", {"a": b"before"})
    with staging(server.url, tmp_path) as stage:
        assert stage.read("s3://changing/a") == [b"before"]
    server.client.put_object(Bucket="changing", Key="a", Body=b"behind")
    with staging(server.url, tmp_path) as stage:
        assert stage.read("s3://changing/a") == [b"behind"]


@pytest.mark.parametrize("kind", ["refuse", "cut", "flip"])
def test_faults_are_retried(proxy: str, faults: Faults, tmp_path: Path, kind: str) -> None:
    setattr(faults, kind, 2)
    with staging(proxy, tmp_path) as stage:
        assert stage.read(FOLDER) == list(SHARDS.values())
        assert stage.read("s3://data/large") == [LARGE]
    assert getattr(faults, kind) == 0
    assert find_left(tmp_path) == []


def test_damaged_data_is_an_error(proxy: str, faults: Faults, tmp_path: Path) -> None:
    faults.flip = 1000
    with staging(proxy, tmp_path) as stage:
        error = stage.ask("s3://data/train/s-0.rec")["error"]
        assert error == "s3://data/train/s-0.rec arrived damaged 3 times: its checksum does not match"
        assert find_held(tmp_path) == 0
        faults.flip = 0
        assert stage.read("s3://data/train/s-0.rec") == [SHARDS["train/s-0.rec"]]  # a later request tries again


def test_objects_in_parts_are_verified(proxy: str, server: S3Server, faults: Faults, tmp_path: Path) -> None:
    parts = [b"a" * (7 << 20), b"b" * (7 << 20), b"c"]  # an unusual part size
    upload = server.client.create_multipart_upload(Bucket="data", Key="other/parts")["UploadId"]
    sent = [
        {"PartNumber": number, "ETag": server.client.upload_part(Bucket="data", Key="other/parts", UploadId=upload, PartNumber=number, Body=part)["ETag"]}  # noqa: E501
        for number, part in enumerate(parts, 1)
    ]  # fmt: skip
    server.client.complete_multipart_upload(
        Bucket="data", Key="other/parts", UploadId=upload, MultipartUpload={"Parts": sent}
    )
    faults.flip = 1
    with staging(proxy, tmp_path) as stage:
        assert stage.read("s3://data/other/parts") == [b"".join(parts)]


def test_two_workers_of_a_node_share_one_copy(proxy: str, faults: Faults, tmp_path: Path) -> None:
    faults.pause_s = 0.2
    with staging(proxy, tmp_path) as one, staging(proxy, tmp_path) as other:
        one.begin(FOLDER)
        assert other.read(FOLDER) == list(SHARDS.values())
    assert sorted(asked for asked in faults.asked if asked.startswith("GET") and asked.endswith(".rec")) == [
        f"GET /data/{key}" for key in SHARDS
    ]


def test_the_cache_is_bounded_and_keeps_data_in_use(server: S3Server, tmp_path: Path) -> None:
    room = {"CLUSTER_DATA_CACHE_GIB": repr(1_310_000 / (1 << 30))}
    with staging(server.url, tmp_path, **room) as one:
        kept = one.read("s3://data/train/s-0.rec")
        with staging(server.url, tmp_path, **room) as other:
            other.read("s3://data/train/s-2.rec")
            error = other.ask("s3://data/train/s-3.rec")["error"]
            assert "all of its data is in use" in error
        with staging(server.url, tmp_path, **room) as other:
            other.read("s3://data/train/s-3.rec")  # replaces s-2, which is no longer in use
        assert find_held(tmp_path) == SIZES[0] + SIZES[3]
        assert one.read("s3://data/train/s-0.rec") == kept
        assert "have to be staged, and" in one.ask(FOLDER)["error"]


def test_data_damaged_by_a_crash_is_fetched_again(server: S3Server, tmp_path: Path) -> None:
    with staging(server.url, tmp_path) as stage:
        paths = [Path(path) for path in stage.ask(FOLDER)["path"].split(";")]
    for path in paths:
        meta = json.loads((path.parent / "meta").read_text())
        (path.parent / "meta").write_text(json.dumps({**meta, "boot": "the one before"}))
    os.chmod(paths[0], 0o600)
    paths[0].write_bytes(bytes(SIZES[0]))
    (paths[1].parent / "meta").write_text("")
    with staging(server.url, tmp_path) as stage:
        assert stage.read(FOLDER) == list(SHARDS.values())
    for path in paths:
        assert json.loads((path.parent / "meta").read_text())["boot"] != "the one before"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://data/nothing/", "s3://data/nothing/: there is nothing to read: cluster data ls s3://data/nothing/"),
        ("s3://nobody/a", "s3://nobody/a: S3 refuses: 404 NoSuchBucket"),
        ("s3://data/train/(", "there is nothing to read"),
    ],
)
def test_missing_data_is_an_error(server: S3Server, tmp_path: Path, uri: str, said: str) -> None:
    with staging(server.url, tmp_path) as stage:
        answer = stage.ask(uri)
        assert said in answer["error"] or "unterminated" in answer["error"]


def test_missing_credentials_are_an_error(server: S3Server, tmp_path: Path) -> None:
    with staging(server.url, tmp_path, AWS_ACCESS_KEY_ID="") as stage:
        assert "no AWS credentials were found" in stage.ask(FOLDER)["error"]


# -- saving ------------------------------------------------------------------------------------------------------------


def test_saved_files_are_read_back(server: S3Server, tmp_path: Path) -> None:
    server.put("models", {})
    with staging(server.url, tmp_path) as stage:
        for content in (b"first", b"other"):  # both have the same size
            assert stage.save("s3://models/net-0001.params", content) == {"path": "s3://models/net-0001.params"}
            stage.send(object="s3://models/net-0001.params")
            assert Path(stage.answer()["path"]).read_bytes() == content
        stage.send(object="s3://models/net")
        assert "s3://models/net: there is nothing to read" in stage.answer()["error"]
        assert stage.save("s3://models/odd/a;b#c?", b"odd")["path"]
        stage.send(object="s3://models/odd/a;b#c?")
        assert Path(stage.answer()["path"]).read_bytes() == b"odd"
    assert server.read("models") == {"net-0001.params": b"other", "odd/a;b#c?": b"odd"}
    assert find_left(tmp_path) == []


def test_files_that_cannot_be_saved(server: S3Server, tmp_path: Path) -> None:
    with staging(server.url, tmp_path) as stage:
        assert "404 NoSuchBucket" in stage.save("s3://nobody/a", b"1")["error"]
        stage.send(draft="s3://data")
        assert "the object's key is missing" in stage.answer()["error"]
        with server.caller_who_may("s3:GetObject", "s3:ListBucket") as (key, secret):
            keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
            with staging(server.url, tmp_path, **keys) as reader:
                assert "s3://data/x: S3 refuses: 403 AccessDenied" in reader.save("s3://data/x", b"1")["error"]


def test_a_full_disk_is_explained() -> None:
    said = fetch.explain(OSError(28, "No space left on device"), "/data")
    assert said == "the disk of /data is full: use a larger volume, or a smaller [data] cache_gib"


def check_after_kill(stage: Stage, cache: Path, room: int) -> None:
    """Checks that the next run finds the right data, and that nothing is left of the killed run."""
    assert stage.read(FOLDER) == list(SHARDS.values())
    assert stage.read("s3://data/large") == [LARGE]
    assert [path.name for path in (cache / "incoming").iterdir()] == []
    assert len(list((cache / "users").iterdir())) == 1
    assert find_held(cache) <= room


def kill_at_random(url: str, faults: Faults, cache: Path, times: int) -> None:
    room = sum(SIZES) + len(LARGE)
    env = {"CLUSTER_DATA_CACHE_GIB": repr((room + 1) / (1 << 30))}
    draw = random.Random(times)
    faults.pause_s = 0.03
    for _ in range(times):
        with staging(url, cache, **env) as stage:
            stage.begin(draw.choice([FOLDER, "s3://data/large"]))
            time.sleep(draw.uniform(0.1, 0.6))
            stage.process.send_signal(signal.SIGKILL)
        with staging(url, cache, **env) as stage:
            check_after_kill(stage, cache, room)
        for path in draw.sample(sorted((cache / "objects").iterdir()), 3):  # so that the next run must fetch some
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


def test_a_kill_at_any_moment_does_no_harm(proxy: str, faults: Faults, tmp_path: Path) -> None:
    kill_at_random(proxy, faults, tmp_path, times=4)


@pytest.mark.slow
def test_a_hundred_kills_do_no_harm(proxy: str, faults: Faults, tmp_path: Path) -> None:
    kill_at_random(proxy, faults, tmp_path, times=100)


@pytest.mark.parametrize("url", ["s3://b/a;b.rec", "s3://b/x#y?z", "s3://b/..", "s3://b/meta", "s3://b/" + "é" * 300])
def test_names_are_valid_for_mxnet(url: str) -> None:
    name = cache.make_name(url)
    assert not set(name) & set(";#?/")
    assert name not in ("", ".", "..", "meta")
    assert len(name) <= cache.NAME_LENGTH


def test_a_signal_while_it_ends_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a job closes stdin, and sends SIGTERM."""
    steps: list[str | int] = []
    set_handler = signal.signal

    class FakeStager:
        def __init__(self, _env: object) -> None: ...

        def stop(self) -> None:
            steps.append("stopped")

    def set_and_send(number: int, handler: object) -> object:
        if handler is signal.SIG_IGN and not steps:
            steps.append("SIGTERM")
            os.kill(os.getpid(), signal.SIGTERM)
        return set_handler(number, handler)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "Stager", FakeStager)
    monkeypatch.setattr(stage, "read_orders", lambda: iter(()))
    monkeypatch.setattr(signal, "signal", set_and_send)
    monkeypatch.setattr(os, "_exit", steps.append)
    before = signal.getsignal(signal.SIGTERM)
    try:
        stage.main()
    finally:
        set_handler(signal.SIGTERM, before)
    assert steps == ["SIGTERM", "stopped", 0]
