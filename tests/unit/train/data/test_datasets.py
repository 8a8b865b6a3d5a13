"""Datasets, from the published files to the files that MXNet reads."""

import gzip
import io
import random
import tarfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from folders import read_files
from mxnet_cluster.recordio import decode_image
from record_files import read_records
from train.data import datasets
from train.data.datasets import (
    DATASETS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    VAL_IMAGES,
    VAL_LABELS,
    Written,
    encode_idx,
    shard_names,
)

DRAW = random.Random(7)
Labelled = tuple[int, bytes]
"""A label, and an image's pixels."""


def read_part(folder: Path, *, mode: str, size: tuple[int, int]) -> list[list[Labelled]]:
    """Reads the images of each shard. Checks that the ids are consecutive."""
    shards = []
    records_before = 0
    for path in sorted(folder.iterdir()):
        shard: list[Any] = []
        for payload in read_records(path.read_bytes()):
            record = decode_image(payload, name=path.name)
            image = Image.open(io.BytesIO(record.image))
            assert (image.format, image.mode, image.size) == ("PNG", mode, size)
            assert record.record_id == records_before + len(shard)
            shard.append((int(record.labels[0]), image.tobytes()))
        records_before += len(shard)
        shards.append(shard)
    return shards


def publish_mnist(folder: Path) -> dict[str, bytes]:
    """Publishes MNIST with 13 and 5 images of 6 by 4; returns the unpacked files."""
    files = {}
    for images, labels, count in ((TRAIN_IMAGES, TRAIN_LABELS, 13), (VAL_IMAGES, VAL_LABELS, 5)):
        files[images] = encode_idx((count, 6, 4), DRAW.randbytes(count * 24))
        files[labels] = encode_idx((count,), bytes(DRAW.randrange(10) for _ in range(count)))
    for name, content in files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return files


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_mnist_in_both_formats(tmp_path: Path, out: Path) -> None:
    files = publish_mnist(tmp_path)
    written = DATASETS["mnist"].write(tmp_path, out, 3)
    there = read_files(out)
    assert there.items() >= files.items()
    assert there.keys() == {*files, *shard_names(3)}
    assert written == Written(train_images=13, val_images=5, files={name: len(there[name]) for name in there})
    train = read_part(out / "train", mode="L", size=(4, 6))
    assert [len(shard) for shard in train] == [4, 4, 5]
    pixels, labels = files[TRAIN_IMAGES][16:], files[TRAIN_LABELS][8:]
    assert list(chain(*train)) == [(labels[at], pixels[at * 24 :][:24]) for at in range(13)]
    assert len(read_part(out / "val", mode="L", size=(4, 6))[0]) == 5


def publish_cifar(folder: Path) -> dict[str, bytes]:
    """Publishes CIFAR-10 with 4 images per batch, out of order; returns the batches."""
    names = [datasets.CIFAR_VAL, *reversed(datasets.CIFAR_TRAIN)]
    batches = {name: b"".join(bytes([at % 10]) + DRAW.randbytes(3072) for at in range(4)) for name in names}
    with tarfile.open(folder / datasets.CIFAR_ARCHIVE, mode="w:gz") as archive:
        for name, content in {**batches, "readme.html": b"x"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return batches


def test_cifar10_in_the_order_of_its_batches(tmp_path: Path, out: Path) -> None:
    batches = publish_cifar(tmp_path)
    written = DATASETS["cifar10"].write(tmp_path, out, 16)
    assert (written.train_images, written.val_images) == (20, 4)
    train = read_part(out / "train", mode="RGB", size=(32, 32))
    assert len(train) == 16
    content = b"".join(batches[name] for name in datasets.CIFAR_TRAIN)
    for at, (label, pixels) in enumerate(chain(*train)):
        record = content[at * 3073 :][:3073]
        assert label == record[0]
        assert (pixels[::3], pixels[1::3], pixels[2::3]) == (record[1:1025], record[1025:2049], record[2049:])
    assert sorted(path.name for path in out.iterdir()) == ["train", "val"]
