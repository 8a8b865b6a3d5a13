"""Public datasets by name: their files, the files' checksums, and their conversion to files that MXNet reads.

To add a dataset, add it to the table at the end. All are written as RecordIO shards of PNG images, train/part-0000N.rec
and val/part-00000.rec; MNIST and the digits also as MNIST's four idx files. An idx file is a header with the shape, and
unsigned bytes:

    0, 0, 0x08 (unsigned byte), number of dimensions | each dimension, 32 bits, big-endian | the bytes

Source: http://yann.lecun.com/exdb/mnist/. MXNet's MNISTIter reads images of three dimensions (count, rows, columns) and
labels of one (count).

Sizes and SHA-256 are those of the files as their authors publish them. The authors give only MD5s, so the sizes and
SHA-256 come from TensorFlow Datasets (url_checksums/mnist.txt, cifar10.txt). The MD5s of MNIST are those of torchvision
(torchvision/datasets/mnist.py); CIFAR-10's is on https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import gzip
import io
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct
from PIL import Image

from bootstrap.environment.file_cache import BundleFile
from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
VAL_IMAGES = "t10k-images-idx3-ubyte"
VAL_LABELS = "t10k-labels-idx1-ubyte"
MNIST_FILES = (TRAIN_IMAGES, TRAIN_LABELS, VAL_IMAGES, VAL_LABELS)
_UNSIGNED_BYTE = 0x08

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_VAL = "test_batch.bin"
_CIFAR_SIZE = (32, 32)
_PLANE = 32 * 32
# A label, then the red, the green and the blue values: https://www.cs.toronto.edu/~kriz/cifar.html
_CIFAR_RECORD = 1 + 3 * _PLANE

DIGIT_SIDE = 28
_INK_SIDE = 20  # MNIST's own: a border of four pixels on every side
_SOURCE_SIDE = 8
_SOURCE_INK = 16
_VAL_DIGITS = 297

Labelled = tuple[int, Image.Image]


class Written(Struct, frozen=True, kw_only=True):
    """A written dataset: the number of images in each part, and the size in bytes of each file by its name."""

    train_images: int
    val_images: int
    files: Mapping[str, int]


class Dataset(Struct, frozen=True, kw_only=True):
    """A dataset. write(sources, folder, shards): writes it into a folder, with this many shards for training.

    sources: the files to download, by their names alone. For `write`, the folder of the downloads, which have the
    published SHA-256. `write` raises OSError.
    """

    name: str
    title: str
    sources: tuple[BundleFile, ...]
    write: Callable[[Path, Path, int], Written]
    shards: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole download."""
        return sum(source.size_bytes for source in self.sources)


class _Part(Struct, frozen=True, kw_only=True):
    """Images with their labels, in order."""

    count: int
    images: Iterable[Labelled]


def shard_names(train_shards: int) -> list[str]:
    """The RecordIO files of a dataset with this many shards for training."""
    return [*(f"train/part-{number:05}.rec" for number in range(train_shards)), "val/part-00000.rec"]


def _write_parts(folder: Path, train: _Part, val: _Part, *, shards: int, others: Sequence[str] = ()) -> Written:
    """Writes both parts as RecordIO. others: the dataset's files that are in the folder already."""
    *train_names, val_name = names = shard_names(shards)
    _write_shards(train, [folder / name for name in train_names])
    _write_shards(val, [folder / val_name])
    files = {name: (folder / name).stat().st_size for name in [*others, *names]}
    return Written(train_images=train.count, val_images=val.count, files=files)


def _write_shards(part: _Part, paths: Sequence[Path]) -> None:
    """Writes the images as PNGs, in order, an equal number to each file. A record's id is the image's index."""
    numbered = enumerate(part.images)
    for shard, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        begin, end = part.count * shard // len(paths), part.count * (shard + 1) // len(paths)
        with path.open("wb") as file:
            for record_id, (label, image) in islice(numbered, end - begin):
                png = io.BytesIO()
                image.save(png, format="PNG", optimize=False)
                record = ImageRecord(labels=(float(label),), record_id=record_id, image=png.getvalue())
                file.write(encode_record(encode_image(record)))


# --- MNIST


def _write_mnist(sources: Path, folder: Path, shards: int) -> Written:
    """Writes MNIST's four files, unpacked, and the same images as RecordIO."""
    for name in MNIST_FILES:
        (folder / name).write_bytes(gzip.decompress((sources / f"{name}.gz").read_bytes()))
    return _write_idx_records(folder, shards)


def _write_idx_records(folder: Path, shards: int) -> Written:
    """Writes the images of MNIST's four files, which are in the folder, as RecordIO too."""
    train = _read_mnist(folder, TRAIN_IMAGES, TRAIN_LABELS)
    val = _read_mnist(folder, VAL_IMAGES, VAL_LABELS)
    return _write_parts(folder, train, val, shards=shards, others=MNIST_FILES)


def _read_mnist(folder: Path, images: str, labels: str) -> _Part:
    (count, height, width), pixels = decode_idx((folder / images).read_bytes())
    _, values = decode_idx((folder / labels).read_bytes())
    area = height * width
    found = (
        (label, Image.frombytes("L", (width, height), pixels[at * area : (at + 1) * area]))
        for at, label in enumerate(values)
    )
    return _Part(count=count, images=found)


def encode_idx(shape: Sequence[int], content: bytes) -> bytes:
    """A whole idx file of this shape; `content` is row by row, one unsigned byte per element. Pure."""
    return struct.pack(f">HBB{len(shape)}I", 0, _UNSIGNED_BYTE, len(shape), *shape) + content


def decode_idx(file: bytes) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes, row by row, of an idx file of unsigned bytes. Pure."""
    begin = 4 + 4 * file[3]
    return struct.unpack(f">{file[3]}I", file[4:begin]), file[begin:]


# --- CIFAR-10


def _write_cifar10(sources: Path, folder: Path, shards: int) -> Written:
    """Writes CIFAR-10 as RecordIO, in the order of its batches, which is not that of the archive."""
    batches = {}
    with tarfile.open(sources / CIFAR_ARCHIVE) as archive:
        for member in archive:
            if (content := archive.extractfile(member)) is not None:
                batches[Path(member.name).name] = content.read()
    train, val = (_read_batches([batches[name] for name in names]) for names in (CIFAR_TRAIN, (CIFAR_VAL,)))
    return _write_parts(folder, train, val, shards=shards)


def _read_batches(batches: Sequence[bytes]) -> _Part:
    count = sum(map(len, batches)) // _CIFAR_RECORD
    return _Part(count=count, images=(image for batch in batches for image in _read_batch(batch)))


def _read_batch(batch: bytes) -> Iterator[Labelled]:
    for begin in range(0, len(batch), _CIFAR_RECORD):
        record = batch[begin : begin + _CIFAR_RECORD]
        planes = [Image.frombytes("L", _CIFAR_SIZE, record[1 + at * _PLANE :][:_PLANE]) for at in range(3)]
        yield record[0], Image.merge("RGB", planes)


# --- 1797 digits that 43 people wrote, 8 by 8 pixels from 0 to 16 each: the test part of UCI's "Optical Recognition of
# Handwritten Digits" (E. Alpaydin, C. Kaynak; CC BY 4.0; archive.ics.uci.edu/dataset/80). digits.gz has the label
# and the pixels of each, shuffled; the last 297 have a share of every label. They are scaled to MNIST's form: the digit
# in the middle, 0 for paper and 255 for ink.


def _write_digits(_: Path, folder: Path, shards: int) -> Written:
    """Writes the digits as MNIST's four files and as RecordIO; always the same bytes."""
    digits = load_digits()
    train, val = digits[:-_VAL_DIGITS], digits[-_VAL_DIGITS:]
    for part, images, labels in ((train, TRAIN_IMAGES, TRAIN_LABELS), (val, VAL_IMAGES, VAL_LABELS)):
        pixels = b"".join(image.tobytes() for _, image in part)
        (folder / images).write_bytes(encode_idx((len(part), DIGIT_SIDE, DIGIT_SIDE), pixels))
        (folder / labels).write_bytes(encode_idx((len(part),), bytes(label for label, _ in part)))
    return _write_idx_records(folder, shards)


def load_digits() -> list[Labelled]:
    """The digits, scaled to MNIST's form."""
    content = gzip.decompress(Path(__file__).with_name("digits.gz").read_bytes())
    border = (DIGIT_SIDE - _INK_SIDE) // 2
    digits = []
    for at in range(0, len(content), 1 + _SOURCE_SIDE**2):
        values = content[at + 1 :][: _SOURCE_SIDE**2]
        small = Image.frombytes("L", (_SOURCE_SIDE, _SOURCE_SIDE), bytes(round(v * 255 / _SOURCE_INK) for v in values))
        page = Image.new("L", (DIGIT_SIDE, DIGIT_SIDE))
        page.paste(small.resize((_INK_SIDE, _INK_SIDE), Image.Resampling.BICUBIC), (border, border))
        digits.append((content[at], page))
    return digits


# --- the table


def _sources(mirrors: tuple[str, ...], *files: tuple[str, int, str]) -> tuple[BundleFile, ...]:
    """The files, given as name, size and SHA-256. mirrors: URLs of folders that have them, in the order to try."""
    return tuple(
        BundleFile(path=Path(name), size_bytes=size, sha256=sha256, urls=tuple(f"{url}/{name}" for url in mirrors))
        for name, size, sha256 in files
    )


_MNIST_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)
_CIFAR_MIRRORS = (
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",
    "https://www.cs.toronto.edu/~kriz",  # the authors' own mirrors, which throttle every connection
    "https://cave.cs.toronto.edu/kriz",
)
_ALL = (
    Dataset(
        name="mnist",
        title="70000 handwritten digits, 28 by 28, grey",
        sources=_sources(
            _MNIST_MIRRORS,
            (f"{TRAIN_IMAGES}.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (f"{TRAIN_LABELS}.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (f"{VAL_IMAGES}.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (f"{VAL_LABELS}.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        write=_write_mnist,
        shards=8,
    ),
    Dataset(
        name="cifar10",
        title="60000 photographs of 10 kinds, 32 by 32, in colour",
        sources=_sources(
            _CIFAR_MIRRORS,
            (CIFAR_ARCHIVE, 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        ),
        write=_write_cifar10,
        shards=16,
    ),
    Dataset(
        name="digits",
        title="1797 handwritten digits, 28 by 28, grey; without a download",
        sources=(),
        write=_write_digits,
        shards=4,
    ),
)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
