"""The demo dataset: real digits, in files that agree with each other."""

import io
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from foundation.errors import ClusterError
from train.data import convert, digits
from train.data.convert import LabelledImage, Written
from train.data.digits import SIDE
from train.data.recordio import decode_image, read_records


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    folder = tmp_path_factory.mktemp("digits")
    return folder, digits.write_demo(folder)


def picture(label: int, pixels: bytes) -> LabelledImage:
    return LabelledImage(label=label, mode="L", width=SIDE, height=SIDE, pixels=pixels)


def read_idx(folder: Path, images: str, labels: str) -> list[LabelledImage]:
    shape, pixels = convert.decode_idx((folder / images).read_bytes(), name=images)
    _, values = convert.decode_idx((folder / labels).read_bytes(), name=labels)
    assert shape == (len(values), SIDE, SIDE)
    area = SIDE * SIDE
    return [picture(value, pixels[at * area :][:area]) for at, value in enumerate(values)]


def read_shard(path: Path) -> list[tuple[int, LabelledImage]]:
    found = []
    with path.open("rb") as file:
        for payload in read_records(file, name=path.name):
            record = decode_image(payload, name=path.name)
            image = Image.open(io.BytesIO(record.image))
            assert (image.format, image.mode, image.size) == ("PNG", "L", (SIDE, SIDE))
            found.append((record.record_id, picture(int(record.labels[0]), image.tobytes())))
    return found


def test_both_formats_hold_the_same_images_in_the_same_order(written: tuple[Path, Written]) -> None:
    folder, _ = written
    train = read_idx(folder, convert.TRAIN_IMAGES, convert.TRAIN_LABELS)
    shards = sorted((folder / "train").iterdir())
    assert [shard.name for shard in shards] == [f"part-0000{number}.rec" for number in range(4)]
    records = [read_shard(shard) for shard in shards]
    assert [len(shard) for shard in records] == [375] * 4
    assert [item for shard in records for item in shard] == list(enumerate(train))
    val = read_idx(folder, convert.VAL_IMAGES, convert.VAL_LABELS)
    assert read_shard(folder / "val" / "part-00000.rec") == list(enumerate(val))


def test_every_image_is_in_one_part_and_every_label_in_the_same_share(written: tuple[Path, Written]) -> None:
    folder, counts = written
    train = read_idx(folder, convert.TRAIN_IMAGES, convert.TRAIN_LABELS)
    val = read_idx(folder, convert.VAL_IMAGES, convert.VAL_LABELS)
    assert (len(train), len(val)) == (counts.train_images, counts.val_images) == (1500, 297)
    assert Counter(train + val) == Counter(digits.load_digits())
    shares = Counter(digit.label for digit in val)
    assert set(shares) == set(range(10))
    assert max(shares.values()) - min(shares.values()) <= 2
    assert [digit.label for digit in train] != sorted(digit.label for digit in train)


def test_images_are_in_mnists_form(written: tuple[Path, Written]) -> None:
    folder, _ = written
    for digit in read_idx(folder, convert.VAL_IMAGES, convert.VAL_LABELS):
        assert max(digit.pixels) > 200
        image = Image.frombytes("L", (SIDE, SIDE), digit.pixels)
        left, top, right, bottom = image.getbbox() or (0, 0, 0, 0)
        assert left >= 4
        assert top >= 4
        assert right <= 24
        assert bottom <= 24


def test_the_same_bytes_are_written_again(written: tuple[Path, Written], tmp_path: Path) -> None:
    folder, first = written
    second = digits.write_demo(tmp_path)
    assert [size for _, size in second.files] == [size for _, size in first.files]
    for (one, size_bytes), (two, _) in zip(first.files, second.files, strict=True):
        assert one.relative_to(folder) == two.relative_to(tmp_path)
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size == size_bytes


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match=r"cannot write the demo data: .*/file"):
        digits.write_demo(tmp_path / "file" / "below")
