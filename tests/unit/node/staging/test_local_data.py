"""Data that is brought to a node before a job, from S3 in the process, with network faults and kills."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from http_server import Asked, Faults, Refusal, judging_proxy
from node.staging import cache, local_data, s3
from node.staging.local_data import DataError, LocalData, Stopped
from s3_server import REGION, S3Server, serve_s3_alone

SIZES = (300_000, 4, 1_000_004, 40_000)
SHARDS = {f"train/s-{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(SIZES)}
LARGE = random.Random(9).randbytes(local_data.RANGE_BYTES * 2 + 12)
URL = "s3://data/"
PROGRAM = (
    "import os, sys; from node.staging.local_data import LocalData; LocalData(os.environ, print).bring(sys.argv[1:])"
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put("data", {**SHARDS, "train/": b"", "train/sub/x": b"no", "large": LARGE, "odd/a;b#c?": b"odd"})
        server.put("data-2", {"t/": b"", "t/a": b"", "t/b": b"1", "t/sub/": b"", "t/sub/c": b"", "t/none/": b""})
        yield server


class RangeFaults(Faults):
    """refuse, cut, flip: answers to GETs of ranges are refused, cut off or damaged by a bit."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_s = 0.0
        self.asked: list[str] = []

    def judge(self, asked: Asked) -> Refusal | None:
        if asked.of_range:
            self.asked.append(asked.path)
        busy = Refusal(status=503, code="SlowDown", message="Please reduce your request rate.")
        return busy if asked.of_range and self.take("refuse") else None

    def change(self, asked: Asked, body: bytes) -> bytes:
        time.sleep(self.pause_s)
        if asked.of_range and self.take("cut"):
            return body[: len(body) // 2]
        return body[:-1] + bytes([body[-1] ^ 1]) if asked.of_range and self.take("flip") else body


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def faults() -> RangeFaults:
    return RangeFaults()


@pytest.fixture
def proxy(server: S3Server, faults: RangeFaults) -> Iterator[str]:
    with judging_proxy(server.url, faults.judge, faults.change) as proxy:
        yield proxy.url


def make_env(url: str, cache: Path, **more: str) -> dict[str, str]:
    given = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "S3_REGION": REGION}
    output = cache.parent / "job" / "output"
    output.mkdir(parents=True, exist_ok=True)
    places = {"CLUSTER_DATA_CACHE_DIR": str(cache), "CLUSTER_OUTPUT_DIR": str(output), "CLUSTER_DATA_URL": URL}
    return {**given, "AWS_ENDPOINT_URL": url, "CLUSTER_HOST": "node-1", **places, **more}


def bring(url: str, cache: Path, *urls: str, **env: str) -> tuple[dict[str, str], dict[str, bytes], list[str]]:
    """Brings data as an agent does. Returns what replaces each URL, all files in $CLUSTER_DATA_DIR, and messages."""
    messages: list[str] = []
    with closing(LocalData(make_env(url, cache, **env), messages.append)) as data:
        paths = data.bring(urls)
        folder = Path(data.folder or "")
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return {name: value.replace(str(folder), "DIR") for name, value in paths.items()}, files, messages


def find_held(cache: Path) -> int:
    """The size of all objects that the cache keeps for later jobs."""
    return sum(path.stat().st_size for path in (cache / "objects").iterdir())


@pytest.mark.parametrize(
    ("url", "value", "names"),
    [
        ("s3://data/train/", "DIR/train/", [*SHARDS, "train/sub/x"]),
        ("s3://data/train/s-1.rec", "DIR/train/s-1.rec", ["train/s-1.rec"]),
        ("s3://data/train/s-", "DIR/train/s-", list(SHARDS)),
        ("s3://data/large", "DIR/large", ["large"]),
        ("s3://data/odd/", "DIR/odd/", ["odd/a;b#c?"]),
        ("s3://data/", "DIR/", [*SHARDS, "train/sub/x", "large", "odd/a;b#c?"]),
    ],
)
def test_what_a_url_brings(server: S3Server, disk: Path, url: str, value: str, names: list[str]) -> None:
    content = {**SHARDS, "train/sub/x": b"no", "large": LARGE, "odd/a;b#c?": b"odd"}
    paths, files, _ = bring(server.url, disk, url)
    assert paths == {url: value}
    assert files == {name: content[name] for name in names}
    assert list((disk / "users").iterdir()) == []


def test_a_file_of_records_brings_the_index_beside_it(server: S3Server, disk: Path) -> None:
    server.put("indexed", {"t/a.rec": b"1234", "t/a.idx": b"0\t0\n", "t/b.rec": b"5678", "t/c.idx": b""})
    for name, names in (("a.rec", ["t/a.idx", "t/a.rec"]), ("b.rec", ["t/b.rec"]), ("c.idx", ["t/c.idx"])):
        url = f"s3://indexed/t/{name}"
        paths, files, _ = bring(server.url, disk, url, CLUSTER_DATA_URL="s3://indexed/")
        assert paths == {url: f"DIR/t/{name}"}
        assert sorted(files) == names


def test_empty_files_are_brought_and_markers_of_folders_are_not(server: S3Server, disk: Path) -> None:
    for url in ("s3://data-2/t/", "s3://data-2/"):
        _, files, _ = bring(server.url, disk, url, CLUSTER_DATA_URL="s3://data-2/")
        assert files == {"t/a": b"", "t/b": b"1", "t/sub/c": b""}


def test_missing_data_is_an_error_below_url_alone(server: S3Server, disk: Path) -> None:
    assert bring(server.url, disk, "s3://data/none/", CLUSTER_DATA_URL="s3://data/train/")[:1] == ({},)
    with pytest.raises(DataError, match="s3://data/none/: there is nothing to read: cluster data ls s3://data/none/"):
        bring(server.url, disk, "s3://data/none/")


def test_a_later_job_copies_what_has_changed(proxy: str, server: S3Server, faults: RangeFaults, disk: Path) -> None:
    server.put("changing", {"a": b"before", "b": b"stays"})
    bring(proxy, disk, "s3://changing/", CLUSTER_DATA_URL="s3://changing/")
    server.client.put_object(Bucket="changing", Key="a", Body=b"behind")
    _, files, _ = bring(proxy, disk, "s3://changing/", CLUSTER_DATA_URL="s3://changing/")
    assert files == {"a": b"behind", "b": b"stays"}
    assert sorted(faults.asked) == ["/changing/a", "/changing/a", "/changing/b"]


def test_two_jobs_of_a_node_share_one_copy(proxy: str, faults: RangeFaults, disk: Path) -> None:
    faults.pause_s = 0.2
    other = threading.Thread(target=bring, args=(proxy, disk, "s3://data/train/"))
    other.start()
    bring(proxy, disk, "s3://data/train/")
    other.join()
    assert sorted(faults.asked) == sorted(f"/data/{name}" for name in [*SHARDS, "train/sub/x"])


def test_faults_are_retried(proxy: str, faults: RangeFaults, disk: Path) -> None:
    faults.left.update(refuse=1, cut=1, flip=1)
    _, files, _ = bring(proxy, disk, "s3://data/train/s-0.rec", "s3://data/large")
    assert files == {"train/s-0.rec": SHARDS["train/s-0.rec"], "large": LARGE}
    assert not any(faults.left.values())


def test_damaged_data_is_an_error(proxy: str, faults: RangeFaults, disk: Path) -> None:
    faults.left["flip"] = 1000
    with pytest.raises(DataError, match=r"s-0\.rec arrived damaged 3 times: its checksum does not match"):
        bring(proxy, disk, "s3://data/train/s-0.rec")
    assert find_held(disk) == 0


def test_a_small_disk_is_found_before_the_copy(
    proxy: str, faults: RangeFaults, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if cache_gib is larger, for saved objects, and for both together."""
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 1_400_000, 1_400_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    env = make_env(proxy, disk, CLUSTER_DATA_CACHE_GIB="1")
    saved = [(s3.Entry(url="s3://data/large", size_bytes=len(LARGE), etag=""), f"{env['CLUSTER_OUTPUT_DIR']}/s3/large")]
    for urls, given, message in (
        (["s3://data/large"], [], "the data has 33.6 MB, and .* has room for 1.4 MB: use a larger disk"),
        ([], saved, "what the job has saved has 33.6 MB, and .*/output has room for 1.4 MB: use a larger disk"),
        (["s3://data/train/"], saved, "has room for 60 kB"),
    ):
        with closing(LocalData(env, print)) as data, pytest.raises(DataError, match=message):
            data.bring(urls, given)
    assert faults.asked == []


def test_old_data_makes_room(server: S3Server, disk: Path) -> None:
    """Unless a job uses it."""
    room = {"CLUSTER_DATA_CACHE_GIB": repr(1_310_000 / (1 << 30))}
    bring(server.url, disk, "s3://data/train/s-0.rec", **room)
    bring(server.url, disk, "s3://data/train/s-2.rec", **room)
    with closing(LocalData(make_env(server.url, disk, **room), print)) as data:
        data.bring(["s3://data/train/s-3.rec"])
        bring(server.url, disk, "s3://data/train/s-2.rec", **room)
        assert find_held(disk) == SIZES[2] + SIZES[3]
        data.bring(["s3://data/train/s-0.rec"])
        with pytest.raises(OSError, match="other jobs use its data: use a larger disk"):
            bring(server.url, disk, "s3://data/train/s-2.rec", **room)


def test_objects_in_parts_are_verified(proxy: str, server: S3Server, faults: RangeFaults, disk: Path) -> None:
    parts = [b"a" * (7 << 20), b"b" * (7 << 20), b"c"]  # an unusual part size
    server.put("parts", {})
    where = {"Bucket": "parts", "Key": "x"}
    where["UploadId"] = server.client.create_multipart_upload(**where)["UploadId"]
    tags = [
        {"PartNumber": number, "ETag": server.client.upload_part(**where, PartNumber=number, Body=part)["ETag"]}
        for number, part in enumerate(parts, 1)
    ]
    server.client.complete_multipart_upload(**where, MultipartUpload={"Parts": tags})
    faults.left["flip"] = 1
    _, files, _ = bring(proxy, disk, "s3://parts/x", CLUSTER_DATA_URL="s3://parts/")
    assert files == {"x": b"".join(parts)}


def test_data_without_a_checksum_is_reported_once(server: S3Server, disk: Path) -> None:
    server.put("encrypted", {})
    for name in ("a", "b"):
        server.put_without_checksum("encrypted", name, b"1")
    _, files, messages = bring(server.url, disk, "s3://encrypted/", CLUSTER_DATA_URL="s3://encrypted/")
    assert files == {"a": b"1", "b": b"1"}
    (message,) = messages  # names the object whose copy began first
    assert re.fullmatch("node-1: S3 .* of 2 objects, such as s3://encrypted/[ab]: not verified", message)


def test_data_of_an_earlier_boot_is_fetched_again(
    server: S3Server, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine may have damaged it."""
    bring(server.url, disk, "s3://data/train/")
    for path in (disk / "objects").iterdir():
        path.chmod(0o600)
        path.write_bytes(bytes(path.stat().st_size))
    (tmp_path / "boot").write_text("the next one")
    monkeypatch.setattr(cache, "BOOT_ID", str(tmp_path / "boot"))
    assert bring(server.url, disk, "s3://data/train/")[1] == {**SHARDS, "train/sub/x": b"no"}


def test_progress_is_shown(proxy: str, faults: RangeFaults, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_data, "REPORT_EVERY_S", 0.1)
    faults.pause_s = 0.5
    _, _, message = bring(proxy, disk, "s3://data/large")
    assert message[0] == "node-1: 0 kB of 33.6 MB of data"


def test_a_job_that_ends_stops_the_copy(proxy: str, disk: Path) -> None:
    stopped = threading.Event()
    stopped.set()
    with closing(LocalData(make_env(proxy, disk), print, stopped)) as data, pytest.raises(Stopped):
        data.bring(["s3://data/large"])


def test_a_kill_at_any_moment_does_no_harm(proxy: str, faults: RangeFaults, disk: Path) -> None:
    draw = random.Random(3)
    faults.pause_s = 0.03
    for _ in range(3):
        words = (sys.executable, "-c", PROGRAM, "s3://data/train/", "s3://data/large")
        with subprocess.Popen(words, env={**os.environ, **make_env(proxy, disk)}) as process:
            time.sleep(draw.uniform(0.2, 0.8))
            process.send_signal(signal.SIGKILL)
        _, files, _ = bring(proxy, disk, "s3://data/train/", "s3://data/large")
        assert files == {**SHARDS, "train/sub/x": b"no", "large": LARGE}
        assert find_held(disk) == sum(map(len, files.values()))
        assert list((disk / "incoming").iterdir()) == list((disk / "users").iterdir()) == []
        for path in draw.sample(sorted((disk / "objects").iterdir()), 3):  # so that the next run must fetch some
            path.unlink()
