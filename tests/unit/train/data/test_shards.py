"""split and info: no byte is lost, and errors name the file and the offset."""

import io
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.progress import silent
from mxnet_cluster.recordio import MAGIC, ImageRecord, encode_image, encode_record
from mxnet_cluster.sources import Shard, Sources
from photos import Run
from record_files import image_record, write_uneven
from train.data.info import describe_shards
from train.data.shards import Destination, open_destination


def joined(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.rec")))


def nothing(_: int) -> None: ...


class CountedFile(io.BytesIO):
    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


def opened(folder: str, *, replace: bool = False) -> AbstractContextManager[Destination]:
    return open_destination(folder, folders=[""], replace=replace, region="", create_bucket=False, report=silent)


@pytest.mark.parametrize("words", [("--shards", "3"), ("--shards", "1"), ("--shard-size", "40kB")])
def test_records_keep_their_bytes_and_their_order(run_here: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    write_uneven(tmp_path / "data")
    output = run_here("split", "data", "out", *words)
    assert "split 3 files, 33 records, into " in output
    assert joined(tmp_path / "out") == joined(tmp_path / "data")
    keys = []
    for path in sorted((tmp_path / "out").glob("*.rec")):
        content = path.read_bytes()
        for line in (tmp_path / "out" / "index" / f"{path.stem}.idx").read_text().splitlines():
            key, offset = map(int, line.split("\t"))
            keys.append(key)
            assert content.startswith(MAGIC, offset)
    assert keys == list(range(33))
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.rec")]
    if words[0] == "--shards":
        assert len(sizes) == int(words[1])
        assert max(sizes) - min(sizes) <= 2 * 31_000
    else:
        assert max(sizes) <= 40_000


def test_files_globs_and_their_order(run_here: Run, tmp_path: Path) -> None:
    paths = write_uneven(tmp_path / "data")
    (tmp_path / "data" / "notes.txt").write_text("not records")
    run_here("split", str(paths[2]), "data/*0.rec", "out", "--shards", "2")
    assert joined(tmp_path / "out") == paths[2].read_bytes() + paths[0].read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "out"), "either --shards or --shard-size"),
        (("data", "data", "--shards", "2"), "is in data, the destination of the shards"),
        (("data", "out", "--shards", "5000"), "the records are too long for 5000 shards"),
    ],
)
def test_invalid_options_of_split(run_here: Run, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    write_uneven(tmp_path / "data")
    with pytest.raises(ClusterError, match=message):
        run_here("split", *words)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_broken_file_is_named_with_the_offset(run_here: Run, tmp_path: Path) -> None:
    first, second = image_record(1), image_record(2)
    (tmp_path / "a.rec").write_bytes(first + second[:-4])
    for words in (("split", "a.rec", "out", "--shards", "1"), ("info", "a.rec")):
        with pytest.raises(ClusterError, match=rf"a\.rec: not a whole RecordIO file, at byte {len(first)}: "):
            run_here(*words)
    assert not list((tmp_path / "out").iterdir())


def test_info(run_here: Run, tmp_path: Path) -> None:
    paths = write_uneven(tmp_path / "data")
    (tmp_path / "data" / "z.rec").write_bytes(encode_record(b"no image"))
    told = json.loads(run_here("info", "data", "--json", "--workers", "3"))
    assert told["records"] == 34
    assert told["without_labels"] == 1
    assert told["labels"]["widths"] == {"1": 33}
    assert len(told["labels"]["first"]) == 33
    assert [shard["records"] for shard in told["shards"]] == [23, 1, 9, 1]
    assert told["size_bytes"] == sum(path.stat().st_size for path in paths) + 16
    assert sum(part["records"] for part in told["parts"]) == 34
    text = run_here("info", "data", "--workers", "2")
    assert "data: 34 records" in text
    assert "and 13 more (--json has all)" in text
    assert "worker 1  " in text
    (tmp_path / "empty.rec").touch()
    assert "empty.rec: 0 records, 0 bytes" in run_here("info", "empty.rec", "--workers", "2")


def test_info_tells_labels_apart(run_here: Run, tmp_path: Path) -> None:
    labels = (2.0, 0.1, 1234567.0, 1234568.0, 1e6, 0.12345678, 0.12345679)
    records = [encode_record(encode_image(ImageRecord(labels=(one,), record_id=0, image=b""))) for one in labels]
    (tmp_path / "a.rec").write_bytes(b"".join(records))
    found = json.loads(run_here("info", "a.rec", "--json"))["labels"]["first"]
    assert found == dict.fromkeys(["0.1", "0.12345678", "0.12345679", "2", "1e+06", "1234567", "1234568"], 1)


def test_info_reads_the_labels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    image = ImageRecord(labels=(1.0, 2.0), record_id=0, image=bytes(1 << 20))
    file = CountedFile(2 * encode_record(encode_image(image)))
    monkeypatch.setattr(Sources, "open", lambda *_: file)
    shard = Shard(name="a.rec", size_bytes=len(file.getvalue()))
    (found,) = describe_shards(Sources(), [shard], full=False, watch=nothing)
    assert found.labels == {image.labels: 2}
    assert file.read_bytes < 10_000
