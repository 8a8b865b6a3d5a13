"""Packing images into shards, compared with MXNet's reader and im2rec.py."""

import json
from pathlib import Path

import click
import pytest

from folders import read_files
from foundation.errors import ClusterError, UsageError
from mxnet_cluster.recordio import decode_image, encode_record
from mxnet_cluster.records import iterate_records
from photos import Run, photo, pixels
from real_mxnet import run_mxnet
from s3_server import S3Server
from train.data.work import work_folder

OWN = {f"part-{number:05}" for number in range(4)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """40 images of different sizes in two folders."""
    folder = tmp_path / "photos"
    for number in range(40):
        path = folder / ("cat" if number % 2 else "dog") / f"{number}.{'png' if number % 7 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(60 + 3 * number, 90 - number, number).save(path, quality=90)
    return folder


def test_shards_have_every_image_and_label(run_here: Run, tmp_path: Path, photos: Path) -> None:
    (photos / ".cache").mkdir()
    photo(50, 40).save(photos / ".cache" / "1.jpg")
    output = run_here("pack", "photos", "out", "--shards", "4", "--resize", "32", "--processes", "2")
    assert "packed 40 images into 4 shards" in output
    assert "skipped hidden files and folders: .cache" in output
    files = read_files(tmp_path / "out")
    assert {name for name in files if "/" not in name} == {f"{stem}.rec" for stem in OWN}
    assert files["index/labels.txt"] == b"0\tcat\n1\tdog\n"
    listed = {}
    for stem in sorted(OWN):
        lines = files[f"index/{stem}.lst"].decode().splitlines()
        keys = [tuple(map(int, line.split("\t"))) for line in files[f"index/{stem}.idx"].decode().splitlines()]
        assert [int(line.split("\t")[0]) for line in lines] == [key for key, _ in keys]
        records = [decode_image(it, name=stem) for it in iterate_records(str(tmp_path / "out" / f"{stem}.rec"))]
        assert len(records) == 10
        for line, (_, offset), record in zip(lines, keys, records, strict=True):
            number, label, path = line.split("\t")
            assert files[f"{stem}.rec"].startswith(b"\x0a\x23\xd7\xce", offset)
            assert (record.record_id, record.labels) == (int(number), (float(label),))
            assert Path(path).parent.name == ("dog" if float(label) else "cat")
            listed[path] = pixels(record.image).shape[:2]
    assert len(listed) == 40
    assert all(min(size) == 32 for size in listed.values())


def test_the_result_is_reproducible(run_here: Run, tmp_path: Path, photos: Path) -> None:
    run_here("pack", "photos", "one", "--resize", "32", "--shard-size", "8kB", "--processes", "1")
    run_here("pack", "photos", "two", "--processes", "1", "--shards", "7", "--no-shuffle")
    again = ("pack", "photos", "two", "--resize", "32", "--shard-size", "8kB", "--processes", "2")
    with pytest.raises(UsageError, match="two has shards already"):
        run_here(*again)
    run_here(*again, "--replace")
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    sizes = [len(content) for name, content in read_files(tmp_path / "one").items() if name.endswith(".rec")]
    assert max(sizes) <= 8000
    assert len(sizes) > 4


def test_parts_for_training_and_validation(run_here: Run, tmp_path: Path, photos: Path) -> None:
    words = ("--pass-through", "--train-ratio", "0.5", "--test-ratio", "0.25", "--shards", "2", "--processes", "1")
    run_here("pack", "photos", "out", *words)
    listed = json.loads(run_here("info", "out/train", "out/test", "out/val", "--json"))
    assert [(shard["name"], shard["records"]) for shard in listed["shards"]][2:] == [
        ("out/test/part-00000.rec", 10),
        ("out/val/part-00000.rec", 10),
    ]
    assert sum(shard["records"] for shard in listed["shards"]) == 40
    assert listed["labels"]["first"] == {"0": 20, "1": 20}
    (path,) = photos.rglob("39.jpg")
    assert any(path.read_bytes() in content for content in read_files(tmp_path / "out").values())


def test_the_labels_of_other_shards_are_not_replaced(run_here: Run, tmp_path: Path, photos: Path) -> None:
    words = ("pack", "photos", "out", "--pass-through", "--processes", "1")
    run_here(*words)
    (photos / "ant").mkdir()
    photo(50, 40).save(photos / "ant" / "1.jpg")
    with pytest.raises(UsageError, match=r"has shards already \(index/labels.txt\)"):
        run_here(*words, "--train-ratio", "0.5")
    assert read_files(tmp_path / "out")["index/labels.txt"] == b"0\tcat\n1\tdog\n"


def test_unreadable_images_are_named(run_here: Run, tmp_path: Path, photos: Path) -> None:
    whole = (photos / "cat" / "1.jpg").read_bytes()
    (photos / "cat" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "dog" / "2.jpg").write_bytes(b"")
    (photos / "dog" / "4.jpg").write_bytes(b"not an image")
    words = ("pack", "photos", "out", "--shards", "2", "--resize", "16", "--processes", "1")
    with pytest.raises(ClusterError, match="3 of 40 images cannot be packed") as raised:
        run_here(*words)
    for words_of_one in ("cat/1.jpg: the JPEG ends", "dog/2.jpg: the file is empty", "dog/4.jpg: not an image"):
        assert words_of_one in str(raised.value)
    assert not (tmp_path / "out").exists() or not read_files(tmp_path / "out")
    output = run_here(*words, "--skip-broken")
    assert "packed 37 images, 3 left out into 2 shards" in output
    assert "left out: dog/2.jpg: the file is empty" in output
    assert not (tmp_path / "out" / ".cluster-pack").exists()


def test_lists_with_several_labels(run_here: Run, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "a.lst").write_text("5\t1\t2.5\tdog/0.png\n9\t0\t-1\tcat/1.jpg\n")
    with pytest.raises(ClusterError, match="2 of 2 images cannot be packed") as raised:
        run_here("pack", "a.lst", "out", "--label-width", "1", "--processes", "1")
    assert "--root DIR names another folder" in str(raised.value.hint)
    words = ("pack", "a.lst", "out", "--root", "photos", "--processes", "1")
    with pytest.raises(UsageError, match="has 2 labels"):
        run_here(*words)
    run_here(*words, "--label-width", "2", "--pass-through", "--shards", "1")
    records = [decode_image(it, name="x") for it in iterate_records(str(tmp_path / "out" / "part-00000.rec"))]
    assert [(it.record_id, it.labels) for it in records] == [(5, (1.0, 2.5)), (9, (0.0, -1.0))]
    assert records[1].image == (photos / "cat" / "1.jpg").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("photos", "out", "--shards", "2", "--shard-size", "1MB"), "only one of the two decides"),
        (("photos", "out", "--shards", "41"), "40 records cannot fill 41 shards"),
        (("photos", "out", "--shard-size", "much"), "'much' is not a size such as 256MiB"),
        (("photos", "out", "--pass-through", "--resize", "8"), "--pass-through leaves the images as they are"),
        (("photos", "full"), "full has other files \\(notes.txt\\): MXNet reads every file"),
        (("nothing", "out"), "nothing: no such folder or list"),
    ],
)
def test_invalid_options_of_pack(
    run_here: Run, tmp_path: Path, photos: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    before = read_files(tmp_path)
    with pytest.raises((ClusterError, click.UsageError), match=message):
        run_here("pack", *words)
    assert read_files(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_link_in_place_of_the_work_folder(run_here: Run, tmp_path: Path, photos: Path) -> None:
    """The command would delete what it points to."""
    elsewhere, work = tmp_path / "elsewhere", tmp_path / "out" / ".cluster-pack"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    work.parent.mkdir()
    work.symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match="cluster-pack"):
        run_here("pack", str(photos), "out")
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


def test_one_command_at_a_time_packs_into_a_folder(run_here: Run, tmp_path: Path, photos: Path) -> None:
    with work_folder(tmp_path / "out" / ".cluster-pack") as work:
        (work / "part.rec").touch()
        with pytest.raises(ClusterError, match="out: another command writes shards there"):
            run_here("pack", str(photos), "out")
        assert (work / "part.rec").exists()
    run_here("pack", str(photos), "out", "--shards", "1")


@pytest.mark.slow
def test_im2rec_makes_the_same_pixels(run_here: Run, tmp_path: Path, photos: Path) -> None:
    run_here("pack", "photos", "out", "--shards", "1", "--resize", "48", "--no-shuffle")
    (tool,) = run_mxnet("import os; print(os.path.join(os.path.dirname(mx.__file__), 'tools', 'im2rec.py'))")
    for words in (["--list", "--recursive", "--no-shuffle"], ["--resize", "48"]):
        run_mxnet(f"import runpy; sys.argv[0] = {tool!r}; runpy.run_path({tool!r}, run_name='__main__')",
                  *words, tmp_path / "theirs", photos)  # fmt: skip
    lines = run_mxnet(
        """
        a = mx.recordio.MXIndexedRecordIO(sys.argv[1] + "/index/part-00000.idx", sys.argv[1] + "/part-00000.rec", "r")
        b = mx.recordio.MXIndexedRecordIO(sys.argv[2] + ".idx", sys.argv[2] + ".rec", "r")
        import numpy
        for key in a.keys:
            (head, mine), (other, theirs) = (mx.recordio.unpack_img(file.read_idx(key)) for file in (a, b))
            assert head == other and mine.shape == theirs.shape, (head, other, mine.shape, theirs.shape)
            print(numpy.abs(mine.astype(int) - theirs).mean())
        """,
        tmp_path / "out",
        tmp_path / "theirs",
    )
    assert len(lines) == 40
    assert max(map(float, lines)) < 2  # 0, apart from rounding in different versions of the library


@pytest.fixture
def bucket(tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server that the commands of run_here use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cluster.toml").write_text('name = "x"\ncloud = "aws"\n')
    return server


def test_straight_to_s3(run_here: Run, tmp_path: Path, photos: Path, bucket: S3Server) -> None:
    words = ("--resize", "32", "--shards", "3", "--processes", "1")
    run_here("pack", "photos", "out", *words)
    run_here("pack", "photos", "s3://bucket/train", *words, "--create-bucket")
    assert bucket.read("bucket") == {f"train/{name}": content for name, content in read_files(tmp_path / "out").items()}
    assert not list((tmp_path / "cache" / "cluster" / "packing").iterdir())
    with pytest.raises(UsageError, match="has shards already"):
        run_here("pack", "photos", "s3://bucket/train/")
    before = bucket.read("bucket")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.jpg").write_text("no picture")
    with pytest.raises(ClusterError, match="cannot be packed"):
        run_here("pack", "bad", "s3://bucket/train", "--replace", "--processes", "1")
    assert bucket.read("bucket") == before
    run_here("pack", "photos", "s3://bucket/train", *words[:2], "--shards", "1", "--processes", "1", "--replace")
    assert [*bucket.read("bucket")] == ["train/index/labels.txt", "train/index/part-00000.idx",
                                        "train/index/part-00000.lst", "train/part-00000.rec"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("photos")
def test_commands_for_shards_in_s3(run_here: Run, bucket: S3Server) -> None:
    words = ("--resize", "32", "--shards", "3", "--processes", "1")
    run_here("pack", "photos", "s3://bucket/train", *words, "--create-bucket")
    run_here("split", "s3://bucket/train/", "s3://bucket/two/", "--shards", "2")
    objects = bucket.read("bucket")
    assert len([name for name in objects if name.startswith("two/") and name.endswith(".rec")]) == 2
    assert join(objects, "two/") == join(objects, "train/")
    counted = json.loads(run_here("info", "s3://bucket/two/", "--json"))
    assert (counted["records"], counted["labels"]) == (40, None)
    whole = json.loads(run_here("info", "s3://bucket/two/", "--json", "--full", "--workers", "2"))
    assert whole["labels"] == {"widths": {"1": 40}, "first": {"0": 20, "1": 20}}
    assert sum(part["records"] for part in whole["parts"]) == 40
    assert whole["shards"] == counted["shards"]


def test_a_wrong_index_is_detected(run_here: Run, bucket: S3Server) -> None:
    with pytest.raises(ClusterError, match=r"s3://nobucket/a\.rec: no such bucket") as raised:
        run_here("info", "s3://nobucket/a.rec")
    assert raised.value.hint == "cluster data ls"
    record = encode_record(b"one")
    bucket.put("bucket", {"a.rec": record * 3})
    for index, message in (
        (b"0\t0\n1\t12\n", "at byte 24: its index"),
        (b"0\t0\n1\t48\n", "belongs to another file"),
        (b"0\t0\n1\t20\n", "at byte 20: expected the magic number"),
        (b"words", "its .idx file is not an index"),
    ):
        bucket.client.put_object(Bucket="bucket", Key="a.idx", Body=index)
        with pytest.raises(ClusterError, match=message):
            run_here("info", "s3://bucket/a.rec")
    assert json.loads(run_here("info", "s3://bucket/a.rec", "--json", "--full"))["records"] == 3


def join(objects: dict[str, bytes], folder: str) -> bytes:
    names = sorted(name for name in objects if name.startswith(folder) and name.endswith(".rec"))
    return b"".join(objects[name] for name in names)
