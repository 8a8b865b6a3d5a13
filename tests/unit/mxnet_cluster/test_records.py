"""The record iterator compared with the real MXNet's ImageRecordIter, by ids, on files and on S3."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folders import write_files
from foundation.errors import ClusterError, NotFoundError
from http_server import Faults, cutting_proxy
from mxnet_cluster import sources
from mxnet_cluster.recordio import MAGIC, decode_image, encode_record
from mxnet_cluster.records import iterate_records
from real_mxnet import run_mxnet
from record_files import write_uneven
from s3_server import S3Server

# Prints, for each number of parts, the labels in each part, in the order in which ImageRecordIter gives them.
LABELS_BY_PART = """
def labels(count, part):
    try:
        records = mx.io.ImageRecordIter(
            path_imgrec=sys.argv[1], data_shape=(3, 8, 8), batch_size=1, num_parts=count, part_index=part,
            preprocess_threads=1, prefetch_buffer=1)
    except StopIteration:
        return []  # the part is empty
    return [int(batch.label[0].asscalar()) for batch in records]

for count in map(int, sys.argv[2].split(",")):
    for part in range(count):
        print(*labels(count, part))
"""


def labels_by_part(path: str, counts: Sequence[int]) -> list[list[int]]:
    lines = run_mxnet(LABELS_BY_PART, path, ",".join(map(str, counts)))
    return [[int(word) for word in line.split()] for line in lines]


def ids_by_part(url: str, counts: tuple[int, ...]) -> list[list[int]]:
    return [
        [decode_image(it, name=url).record_id for it in iterate_records(url, num_parts=count, part_index=index)]
        for count in counts
        for index in range(count)
    ]


def test_parts_of_files_are_mxnets(tmp_path: Path) -> None:
    paths = write_uneven(tmp_path / "data")
    listed = ";".join(map(str, paths))
    counts = (1, 3, 12)
    ours = ids_by_part(listed, counts)
    assert ours == labels_by_part(listed, counts)
    assert ids_by_part(f"{tmp_path}/data/", counts) == ours
    at = 0
    for count in counts:  # with 12, some parts are shorter than a record
        assert list(chain.from_iterable(ours[at : at + count])) == list(range(33))
        at += count


def test_parts_of_s3_are_those_of_files(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_uneven(tmp_path / "data")
    server.put("bucket", {f"train/{path.name}": path.read_bytes() for path in paths} | {"train/index/a": b"xyz"})
    monkeypatch.setattr(sources, "CHUNK_BYTES", 10_000)
    assert ids_by_part("s3://bucket/train/", (2, 3)) == ids_by_part(f"{tmp_path}/data/", (2, 3))


def test_broken_connections_are_retried(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_uneven(tmp_path, (60,))
    server.put("bucket", {"a.rec": path.read_bytes()})
    cuts = Faults(cut=3)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 50_000)
    with cutting_proxy(server.url, cuts, after_bytes=20_000):
        assert ids_by_part("s3://bucket/a.rec", (1,)) == [list(range(60))]
    assert cuts.done == 3


def test_an_object_that_changes_is_an_error(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_uneven(tmp_path, (60,))
    server.put("bucket", {"a.rec": path.read_bytes()})
    monkeypatch.setattr(sources, "CHUNK_BYTES", 20_000)
    records = iterate_records("s3://bucket/a.rec")
    next(records)
    server.client.put_object(Bucket="bucket", Key="a.rec", Body=path.read_bytes()[::-1])
    with pytest.raises(ClusterError, match=r"s3://bucket/a\.rec: it was changed"):
        list(records)


def test_missing_files_are_named(server: S3Server, tmp_path: Path) -> None:
    server.put("bucket", {"b": b""})
    for url in ("s3://bucket/a.rec", "s3://bucket/a/", "s3://no-bucket/a/", f"{tmp_path}/a.rec", f"{tmp_path}/"):
        with pytest.raises(NotFoundError, match=url.rpartition("/")[0]):
            list(iterate_records(url))


def test_names_with_the_characters_of_globs(server: S3Server, tmp_path: Path) -> None:
    record = encode_record(b"abcd")
    server.put("bucket", {"d[1]/a[2].rec": record, "d1/a2.rec": record * 2})
    write_files(tmp_path, {"d[1]/a[2].rec": record, "d1/a2.rec": record * 2})
    for place in ("s3://bucket", str(tmp_path)):
        for name in ("d[1]/a[2].rec", "d[1]/", "d[1]"):
            assert list(iterate_records(f"{place}/{name}")) == [b"abcd"]
        assert list(iterate_records(f"{place}/d[1-2]/*.rec")) == [b"abcd"] * 2


def test_a_size_that_is_not_a_multiple_of_four(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(encode_record(b"abcd") + b"x")
    with pytest.raises(ClusterError, match="13 bytes, not a multiple of four"):
        list(iterate_records(str(tmp_path / "a.rec")))


PIECES = st.lists(st.sampled_from([MAGIC, MAGIC[:2], MAGIC[2:], b"", b"a", b"bc", b"defg" * 9]), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(st.lists(st.lists(PIECES.map(b"".join), max_size=6), min_size=1, max_size=3), st.integers(1, 12))
def test_any_record_is_in_one_part(tmp_path: Path, files: list[list[bytes]], count: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, payloads in enumerate(files):
        (folder / f"{number}.rec").write_bytes(b"".join(map(encode_record, payloads)))
    if any(files):
        read = [it for part in range(count) for it in iterate_records(f"{folder}/", num_parts=count, part_index=part)]
        assert read == list(chain.from_iterable(files))
