"""Training with the real MXNet on s3://: every record is read once per epoch, and saved files exist."""

import json
import re
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record
from project import Project

pytestmark = pytest.mark.sandbox

COUNTS = (1, 40, 7, 150, 2, 2, 60)
"""Records of the shards: one is larger than the part of any of 2, 3 or 5 workers, others are smaller than a part."""
URL, INDEXED_URL, SAVED_URL = "s3://cluster-demo/ids/", "s3://cluster-demo/indexed/", "s3://cluster-demo/saved/"

SETTINGS: dict[str, Any] = {
    "script": "ids_on_a_node.py",
    "args": [URL, INDEXED_URL],
    "results": SAVED_URL,
}


@pytest.fixture(scope="module")
def nodes(two_nodes: Project) -> Project:
    folder = two_nodes.directory / "ids"
    folder.mkdir()
    numbers = iter(range(sum(COUNTS)))
    for shard, count in enumerate(COUNTS):
        records = [encode_record(encode_image(image(next(numbers)))) for _ in range(count)]
        (folder / f"s-{shard}.rec").write_bytes(b"".join(records))
    two_nodes.run("data", "put", "--create-bucket", "ids/", URL)
    write_indexed(two_nodes.directory / "indexed")
    two_nodes.run("data", "put", "indexed/", INDEXED_URL)
    shutil.copy(Path(__file__).with_name("ids_on_a_node.py"), two_nodes.directory)
    return two_nodes


def write_indexed(folder: Path) -> None:
    """Five records in one file, and the index that Gluon's data sets read beside it."""
    folder.mkdir()
    records = [encode_record(encode_image(image(number))) for number in range(5)]
    begins = [sum(map(len, records[:number])) for number in range(5)]
    (folder / "one.rec").write_bytes(b"".join(records))
    (folder / "one.idx").write_text("".join(f"{number}\t{begin}\n" for number, begin in enumerate(begins)))


def image(number: int) -> ImageRecord:
    """A grey image of 4 by 4 pixels as PNG, whose label is its number."""
    pixels = zlib.compress(b"".join(b"\0" + bytes([number % 256] * 4) for _ in range(4)))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    png = b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return ImageRecord(labels=(float(number),), record_id=number, image=b"\x89PNG\r\n\x1a\n" + png)


def ids_of(nodes: Project) -> tuple[list[dict[str, Any]], str]:
    """Runs the job; returns the values that its workers print, and all of its output."""
    done = nodes.run("train", "-v", "--plain", "--launcher", "env")
    return [json.loads(line) for line in re.findall(r"\] IDS (\{.*\})", done.stdout)], done.stdout + done.stderr


def check_each_once(told: list[dict[str, Any]]) -> None:
    check_epochs([worker["own"] for worker in told], "own")
    assert len(told) == 2
    (first,) = [worker for worker in told if "1" in worker]
    for way in ("1", "2", "3", "5", "shuffled"):
        check_epochs(first[way], way)
    assert first["by name"] == list(range(1, 41))
    assert first.get("indexed", list(range(5))) == list(range(5))


def check_epochs(parts: list[list[list[int]]], way: str) -> None:
    """Checks that all parts together have every record once in each epoch. A part is a list of ids for each epoch."""
    for epoch in (0, 1):
        read = sorted(number for part in parts for number in part[epoch])
        assert read == list(range(sum(COUNTS))), f"{way}, epoch {epoch}"


@pytest.mark.parametrize("mode", [pytest.param("native", marks=pytest.mark.slow), "stage"])
def test_every_record_once_per_epoch(nodes: Project, mode: str) -> None:
    with nodes.configured(**SETTINGS, mode=mode):
        told, output = ids_of(nodes)
    check_each_once(told)
    assert any("indexed" in worker for worker in told) == (mode == "stage")
    assert {"native": "read by MXNet itself", "stage": "read from files staged on the nodes"}[mode] in output


def test_what_a_command_saves_at_a_url_is_there_for_the_next_job(nodes: Project) -> None:
    """On the node's disk, for a program that cannot open s3://. $CLUSTER_DATA_DIR has the data."""
    line = f"cat {SAVED_URL}m/net; echo from $CLUSTER_JOB_NAME >{SAVED_URL}m/net; ls $CLUSTER_DATA_DIR"
    with nodes.configured(**SETTINGS, mode="stage", url=URL):
        for name in ("one", "two"):
            output = nodes.run("train", "--name", name, "--launcher", "env", "-n", "1", "--", "sh", "-c", line).stdout
    assert "] from one" in output
    assert output.count("] s-") == len(COUNTS)
