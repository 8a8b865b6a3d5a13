"""A real handwritten-digit set that needs no download, in the formats that MXNet reads.

scikit-learn carries 1797 digits written by 43 people, 8 by 8 pixels each (the test part of UCI's "Optical
Recognition of Handwritten Digits"). They are scaled to MNIST's form: 28 by 28 pixels, the digit in the middle
20 by 20, 0 for paper and 255 for ink. The same call writes the same bytes.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from provision.errors import ClusterError
from train.data import idx
from train.data.convert import LabelledImage, Written, shard_name, write_shards

SIDE = 28
_INK_SIDE = 20  # MNIST's own: a border of four pixels on every side
_SOURCE_SIDE = 8
_SOURCE_INK = 16  # the darkest value in scikit-learn's images
_VAL_COUNT = 297
_TRAIN_SHARDS = 4
_SPLIT_SEED = 1797


@dataclass(frozen=True, kw_only=True, slots=True)
class Digit:
    """A label (0 to 9) and SIDE * SIDE pixels, row by row, one byte each."""

    label: int
    pixels: bytes


def write_demo(folder: Path, *, shards: int = _TRAIN_SHARDS) -> Written:
    """Write the digits into `folder`, as MNIST's four idx files and as RecordIO shards of PNG images.

    The shards are train/part-0000N.rec and val/part-00000.rec. About a sixth of every digit is in the
    validation part. Files of these names are replaced. Raises ClusterError where the folder cannot be written.
    """
    digits = load_digits()
    train, val = split_digits(digits)
    contents = {
        idx.TRAIN_IMAGES: _idx_images(train),
        idx.TRAIN_LABELS: _idx_labels(train),
        idx.VAL_IMAGES: _idx_images(val),
        idx.VAL_LABELS: _idx_labels(val),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        write_shards(map(_image, train), count=len(train), folder=folder, part="train", shards=shards)
        write_shards(map(_image, val), count=len(val), folder=folder, part="val", shards=1)
        names = [*contents, *(shard_name("train", number) for number in range(shards)), shard_name("val", 0)]
        files = tuple((folder / name, (folder / name).stat().st_size) for name in sorted(names))
    except OSError as error:
        raise ClusterError(f"cannot write the demo data: {error.filename}: {error.strerror}") from error
    return Written(train_images=len(train), val_images=len(val), files=files)


def load_digits() -> tuple[Digit, ...]:
    """scikit-learn's digits in their own order, scaled to MNIST's form."""
    from sklearn import datasets  # noqa: PLC0415 - takes a second to import

    source = datasets.load_digits()
    border = (SIDE - _INK_SIDE) // 2
    digits = []
    for values, label in zip(source.images, source.target, strict=True):
        ink = bytes(round(float(value) * 255 / _SOURCE_INK) for value in values.flat)
        small = Image.frombytes("L", (_SOURCE_SIDE, _SOURCE_SIDE), ink)
        page = Image.new("L", (SIDE, SIDE))
        page.paste(small.resize((_INK_SIDE, _INK_SIDE), Image.Resampling.BICUBIC), (border, border))
        digits.append(Digit(label=int(label), pixels=page.tobytes()))
    return tuple(digits)


def split_digits(
    digits: Sequence[Digit], *, val_count: int = _VAL_COUNT
) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """A training and a validation part of `val_count` digits, every label in equal share, both shuffled.

    The split is the same in every run and for every version of Python (random.Random with a fixed seed).
    """
    order = list(range(len(digits)))
    random.Random(_SPLIT_SEED).shuffle(order)  # noqa: S311 - a split of a dataset, not a secret
    sizes = Counter(digit.label for digit in digits)
    seen: Counter[int] = Counter()
    ranks: dict[int, float] = {}
    # The share of its label's digits that come before it: cutting all labels at one share is a stratified
    # split.
    for index in order:
        label = digits[index].label
        ranks[index] = (seen[label] + 0.5) / sizes[label]
        seen[label] += 1
    in_val = frozenset(sorted(order, key=lambda index: ranks[index])[:val_count])
    train = tuple(digits[index] for index in order if index not in in_val)
    val = tuple(digits[index] for index in order if index in in_val)
    return train, val


def _idx_images(digits: Sequence[Digit]) -> bytes:
    return idx.encode_idx((len(digits), SIDE, SIDE), b"".join(digit.pixels for digit in digits))


def _idx_labels(digits: Sequence[Digit]) -> bytes:
    return idx.encode_idx((len(digits),), bytes(digit.label for digit in digits))


def _image(digit: Digit) -> LabelledImage:
    return LabelledImage(label=digit.label, mode="L", width=SIDE, height=SIDE, pixels=digit.pixels)
