"""A real handwritten-digit set that needs no download, in the formats that MXNet reads.

scikit-learn carries 1797 digits written by 43 people, 8 by 8 pixels each (the test part of UCI's "Optical
Recognition of Handwritten Digits"). They are scaled to MNIST's form: 28 by 28 pixels, the digit in the middle
20 by 20, 0 for paper and 255 for ink. The same call writes the same bytes.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from foundation.errors import ClusterError
from train.data.convert import (
    TRAIN_IMAGES,
    TRAIN_LABELS,
    VAL_IMAGES,
    VAL_LABELS,
    LabelledImage,
    Written,
    encode_idx,
    shard_name,
    write_shards,
)

SIDE = 28
_INK_SIDE = 20  # MNIST's own: a border of four pixels on every side
_SOURCE_SIDE = 8
_SOURCE_INK = 16  # the darkest value in scikit-learn's images
_VAL_COUNT = 297
_TRAIN_SHARDS = 4
_SPLIT_SEED = 1797


def write_demo(folder: Path, *, shards: int = _TRAIN_SHARDS) -> Written:
    """Write the digits into `folder`, as MNIST's four idx files and as RecordIO shards of PNG images.

    The shards are train/part-0000N.rec and val/part-00000.rec. About a sixth of every digit is in the
    validation part. Files of these names are replaced. Raises ClusterError where the folder cannot be written.
    """
    digits = load_digits()
    train, val = split_digits(digits)
    contents = {
        TRAIN_IMAGES: encode_idx((len(train), SIDE, SIDE), b"".join(digit.pixels for digit in train)),
        TRAIN_LABELS: encode_idx((len(train),), bytes(digit.label for digit in train)),
        VAL_IMAGES: encode_idx((len(val), SIDE, SIDE), b"".join(digit.pixels for digit in val)),
        VAL_LABELS: encode_idx((len(val),), bytes(digit.label for digit in val)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        write_shards(train, count=len(train), folder=folder, part="train", shards=shards)
        write_shards(val, count=len(val), folder=folder, part="val", shards=1)
        names = [*contents, *(shard_name("train", number) for number in range(shards)), shard_name("val", 0)]
        files = tuple((folder / name, (folder / name).stat().st_size) for name in sorted(names))
    except OSError as error:
        raise ClusterError(f"cannot write the demo data: {error.filename}: {error.strerror}") from error
    return Written(train_images=len(train), val_images=len(val), files=files)


def load_digits() -> tuple[LabelledImage, ...]:
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
        digits.append(LabelledImage(label=int(label), mode="L", width=SIDE, height=SIDE, pixels=page.tobytes()))
    return tuple(digits)


def split_digits(
    digits: Sequence[LabelledImage], *, val_count: int = _VAL_COUNT
) -> tuple[tuple[LabelledImage, ...], tuple[LabelledImage, ...]]:
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
