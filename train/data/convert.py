"""From the formats in which datasets are published to those that MXNet reads: idx files and RecordIO shards.

MNIST's idx files are unsigned bytes behind a header that gives their shape:

    0, 0, 0x08 (unsigned byte), number of dimensions | each dimension, 32 bits, big-endian | the bytes

Source: http://yann.lecun.com/exdb/mnist/. MXNet's MNISTIter reads images of three dimensions (count, rows, columns) and
labels of one (count).
"""

import gzip
import io
import math
import shutil
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from foundation.errors import ClusterError
from train.data.recordio import ImageRecord, encode_image, encode_record

_UNSIGNED_BYTE = 0x08

# The names of MNIST's own four files.
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
VAL_IMAGES = "t10k-images-idx3-ubyte"
VAL_LABELS = "t10k-labels-idx1-ubyte"


CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_VAL = "test_batch.bin"
CIFAR_SIDE = 32
_PLANE = CIFAR_SIDE * CIFAR_SIDE
# A label, then the red, the green and the blue values: https://www.cs.toronto.edu/~kriz/cifar.html
CIFAR_RECORD = 1 + 3 * _PLANE


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was written: how many images of each part, and the files with their sizes in bytes."""

    train_images: int
    val_images: int
    files: tuple[tuple[Path, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledImage:
    """A label, and the pixels row by row: one byte each where mode is "L", three where it is "RGB"."""

    label: int
    mode: str
    width: int
    height: int
    pixels: bytes


def shard_name(part: str, number: int) -> str:
    """A RecordIO file's name: train/part-00007.rec."""
    return f"{part}/part-{number:05}.rec"


def write_shards(images: Iterable[LabelledImage], *, count: int, folder: Path, part: str, shards: int) -> None:
    """Write `count` images as PNGs into a part's RecordIO files, in their order, as many to each as to the others.

    The id of a record is the image's place in the order. Raises OSError.
    """
    (folder / part).mkdir(parents=True, exist_ok=True)
    numbered = enumerate(images)
    for shard in range(shards):
        begin, end = count * shard // shards, count * (shard + 1) // shards
        with (folder / shard_name(part, shard)).open("wb") as file:
            for record_id, image in islice(numbered, end - begin):
                labels = (float(image.label),)
                payload = encode_image(ImageRecord(labels=labels, record_id=record_id, image=encode_png(image)))
                file.write(encode_record(payload))


def encode_png(image: LabelledImage) -> bytes:
    """The image, without loss."""
    file = io.BytesIO()
    pixels = Image.frombytes(image.mode, (image.width, image.height), image.pixels)
    pixels.save(file, format="PNG", optimize=False)
    return file.getvalue()


def find_written(folder: Path, *, train_images: int, val_images: int) -> Written:
    """All files of a folder, with their sizes."""
    files = ((path, path.stat().st_size) for path in sorted(folder.rglob("*")) if path.is_file())
    return Written(train_images=train_images, val_images=val_images, files=tuple(files))


def write_mnist(sources: Path, folder: Path, shards: int) -> Written:
    """MNIST's four files unpacked, and the same images as RecordIO in train/ and val/.

    sources: has the four .gz files. Raises ClusterError for files that are not what they should be, OSError.
    """
    for name in (TRAIN_IMAGES, TRAIN_LABELS, VAL_IMAGES, VAL_LABELS):
        _unzip(sources / f"{name}.gz", folder / name)
    counts = []
    for part, images, labels, number in (
        ("train", TRAIN_IMAGES, TRAIN_LABELS, shards),
        ("val", VAL_IMAGES, VAL_LABELS, 1),
    ):
        (count, height, width), pixels = _read_idx(folder / images, dimensions=3)
        label_shape, values = _read_idx(folder / labels, dimensions=1)
        if label_shape != (count,):
            raise ClusterError(f"{images} has {count} images, and {labels} {label_shape[0]} labels")
        area = height * width
        found = (
            LabelledImage(label=label, mode="L", width=width, height=height, pixels=pixels[at * area : (at + 1) * area])
            for at, label in enumerate(values)
        )
        write_shards(found, count=count, folder=folder, part=part, shards=number)
        counts.append(count)
    return find_written(folder, train_images=counts[0], val_images=counts[1])


def _unzip(source: Path, target: Path) -> None:
    try:
        with gzip.open(source) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ClusterError(f"{source.name}: not a whole gzip file: {error}") from error


def _read_idx(path: Path, *, dimensions: int) -> tuple[tuple[int, ...], bytes]:
    shape, content = decode_idx(path.read_bytes(), name=path.name)
    if len(shape) != dimensions:
        raise ClusterError(f"{path.name}: an array of {len(shape)} dimensions, not {dimensions}")
    return shape, content


def write_cifar10(sources: Path, folder: Path, shards: int) -> Written:
    """CIFAR-10 as RecordIO in train/ and val/, in the order of its batches.

    sources: has the archive of the binary version. Raises ClusterError for files that are not what they should be,
    OSError.
    """
    counts = []
    # Not from the archive itself: its batches do not stand in their order there.
    with TemporaryDirectory(dir=folder) as unpacked:
        _unpack(sources / CIFAR_ARCHIVE, names={*CIFAR_TRAIN, CIFAR_VAL}, folder=Path(unpacked))
        for part, names, number in (("train", CIFAR_TRAIN, shards), ("val", (CIFAR_VAL,), 1)):
            batches = [Path(unpacked) / name for name in names]
            count = sum(_count_records(batch) for batch in batches)
            images = (image for batch in batches for image in _read_batch(batch))
            write_shards(images, count=count, folder=folder, part=part, shards=number)
            counts.append(count)
    return find_written(folder, train_images=counts[0], val_images=counts[1])


def _unpack(archive: Path, *, names: set[str], folder: Path) -> None:
    """Those files of the archive, whatever its folders are called, into one; nothing else of it is written."""
    missing = set(names)
    try:
        with tarfile.open(archive, "r|gz") as members:
            for member in members:
                name = member.name.rpartition("/")[2]
                packed = members.extractfile(member) if name in missing and member.isfile() else None
                if packed is not None:
                    with packed, (folder / name).open("wb") as file:
                        shutil.copyfileobj(packed, file, 1 << 20)
                    missing.remove(name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ClusterError(f"{archive.name}: not a whole tar.gz archive: {error}") from error
    if missing:
        raise ClusterError(f"{archive.name}: there is no {', '.join(sorted(missing))} in it")


def _count_records(batch: Path) -> int:
    count, rest = divmod(batch.stat().st_size, CIFAR_RECORD)
    if rest:
        raise ClusterError(f"{batch.name}: not a row of records of {CIFAR_RECORD} bytes")
    return count


def _read_batch(batch: Path) -> Iterator[LabelledImage]:
    with batch.open("rb") as file:
        while record := file.read(CIFAR_RECORD):
            planes = (record[1 + plane * _PLANE : 1 + (plane + 1) * _PLANE] for plane in range(3))
            pixels = bytearray(3 * _PLANE)
            for plane, values in enumerate(planes):
                pixels[plane::3] = values
            yield LabelledImage(label=record[0], mode="RGB", width=CIFAR_SIDE, height=CIFAR_SIDE, pixels=bytes(pixels))


def encode_idx(shape: Sequence[int], content: bytes) -> bytes:
    """A whole idx file of this shape; `content` is row by row, one unsigned byte each.

    Raises ValueError where the shape does not hold exactly that many bytes.
    """
    if math.prod(shape) != len(content):
        raise ValueError(f"{len(content)} bytes do not fill the shape {tuple(shape)}")
    header = struct.pack(f">HBB{len(shape)}I", 0, _UNSIGNED_BYTE, len(shape), *shape)
    return header + content


def decode_idx(file: bytes, *, name: str) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes, row by row, of a whole idx file.

    `name` is what an error calls the file. Raises ClusterError where it is not a whole idx file of unsigned
    bytes.
    """
    if len(file) < 4 or file[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise ClusterError(f"{name}: not an idx file of unsigned bytes")
    begin = 4 + 4 * file[3]
    if len(file) < begin:
        raise ClusterError(f"{name}: the idx file ends inside its header")
    shape = struct.unpack(f">{file[3]}I", file[4:begin])
    content = file[begin:]
    if math.prod(shape) != len(content):
        raise ClusterError(f"{name}: the idx header says {shape}, but {len(content)} bytes follow")
    return shape, content
