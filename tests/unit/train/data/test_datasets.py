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
from real_mxnet import run_mxnet
from record_files import read_records
from train.data import datasets
from train.data.datasets import (
    DATASETS,
    DIGIT_SIDE,
    MNIST_FILES,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    VAL_IMAGES,
    VAL_LABELS,
    Written,
    decode_idx,
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


# --- MNIST


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


# --- CIFAR-10


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


@pytest.mark.slow
def test_mxnet_reads_the_records(tmp_path: Path, out: Path) -> None:
    batches = publish_cifar(tmp_path)
    DATASETS["cifar10"].write(tmp_path, out, 1)
    lines = run_mxnet(
        """
        records = mx.io.ImageRecordIter(path_imgrec=sys.argv[1], data_shape=(3, 32, 32), batch_size=1,
                                        preprocess_threads=1, prefetch_buffer=1)
        for batch in records:
            print(int(batch.label[0].asscalar()), batch.data[0][0].asnumpy().astype("uint8").tobytes().hex())
        """,
        out / "val" / "part-00000.rec",
    )
    content = batches[datasets.CIFAR_VAL]
    # MXNet uses CIFAR-10's own order: the red, the green and the blue plane.
    assert lines == [f"{content[at]} {content[at + 1 : at + 3073].hex()}" for at in range(0, 4 * 3073, 3073)]


# --- the digits


def write_digits(folder: Path) -> Written:
    return DATASETS["digits"].write(folder, folder, 4)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    folder = tmp_path_factory.mktemp("digits")
    return folder, write_digits(folder)


def read_idx(folder: Path, images: str, labels: str) -> list[Labelled]:
    shape, pixels = decode_idx((folder / images).read_bytes())
    _, values = decode_idx((folder / labels).read_bytes())
    assert shape == (len(values), DIGIT_SIDE, DIGIT_SIDE)
    area = DIGIT_SIDE * DIGIT_SIDE
    return [(value, pixels[at * area :][:area]) for at, value in enumerate(values)]


def test_both_formats_have_the_same_digits(demo: tuple[Path, Written]) -> None:
    folder, written = demo
    size = (DIGIT_SIDE, DIGIT_SIDE)
    train = read_part(folder / "train", mode="L", size=size)
    assert [len(shard) for shard in train] == [375] * 4
    assert list(chain(*train)) == read_idx(folder, TRAIN_IMAGES, TRAIN_LABELS)
    assert read_part(folder / "val", mode="L", size=size) == [read_idx(folder, VAL_IMAGES, VAL_LABELS)]
    assert written.files == {name: len(content) for name, content in read_files(folder).items()}
    assert written.files.keys() == {*MNIST_FILES, *shard_names(4)}


def test_digits_are_reproducible(demo: tuple[Path, Written], tmp_path: Path) -> None:
    folder, first = demo
    assert write_digits(tmp_path) == first
    assert read_files(tmp_path) == read_files(folder)


def test_the_table_is_complete() -> None:
    for name, dataset in DATASETS.items():
        assert name == dataset.name
        for file in dataset.sources:
            assert len(file.mirrors) > 1
            assert all(url.startswith("https://") for url in file.urls)
            assert len(bytes.fromhex(file.sha256)) == 32
