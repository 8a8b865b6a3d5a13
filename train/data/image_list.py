"""The pictures to pack, with their labels: from a folder, or from a list file as im2rec.py writes it.

A line of a list file is an index, one or more labels and a path, separated by tabs. In a folder, each subfolder with
pictures is a label: 0, 1, 2 ... in the order of their names. The pictures are numbered in the same order. Hidden files
and folders, which programs such as Jupyter and macOS create beside the pictures, are skipped.
"""

import math
import random
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from foundation.errors import ClusterError, NotFoundError, UsageError
from train.data.encode import Picture
from train.s3.sources import refuse_unreadable, walk_files

EXTENSIONS = (".jpeg", ".jpg", ".png")
SEED = 100
"""im2rec.py's own seed, so that both list a folder in the same order."""


class ImageList(Struct, frozen=True, kw_only=True):
    """Pictures in order, the folder that their paths are relative to, and the subfolder of each label.

    hidden: the files and folders that were skipped with pictures in them.
    """

    root: Path
    images: tuple[Picture, ...]
    label_names: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def list_folder(root: Path, *, extensions: Collection[str] = EXTENSIONS) -> ImageList:
    """The pictures in a folder and below, sorted by name, following links, without hidden ones.

    Raises NotFoundError if there are none, ClusterError for an unreadable folder or a name that a list cannot hold.
    """
    images: list[Picture] = []
    labels: dict[str, int] = {}
    skipped: dict[str, None] = {}
    for file, path in walk_files(root, onerror=refuse_unreadable):
        if file.suffix.lower() not in extensions or not file.is_file():
            continue
        if hidden := find_hidden(path):
            skipped[hidden] = None
            continue
        if not {"\t", "\n", "\r"}.isdisjoint(path):
            raise ClusterError(f"{root}: {path!r}: a list cannot contain a name with a tab or a line break")
        label = labels.setdefault(path.rpartition("/")[0] or ".", len(labels))
        images.append(Picture(path=path, labels=(float(label),), record_id=len(images)))
    if not images:
        raise NotFoundError(f"{root}: no files that end with {', '.join(extensions)}", hint="--exts sets the endings")
    return ImageList(root=root, images=tuple(images), label_names=tuple(labels), hidden=tuple(skipped))


def find_hidden(path: str) -> str:
    """The outermost hidden part of a path with slashes, with what is above it; empty if there is none. Pure.

    A name that begins with a dot is hidden, and so is __MACOSX, the folder that macOS adds to zip files.
    """
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if part.startswith(".") or part == "__MACOSX"), None)
    return "" if at is None else "/".join(parts[: at + 1])


def read_list(file: Path, *, root: Path, label_width: int | None) -> ImageList:
    """The pictures of a list file.

    label_width: how many labels each record gets; 0: all labels of its line; None: each line must have exactly one.
    Raises OSError, UsageError for another number of labels, ClusterError that names an invalid line.
    """
    images = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="surrogateescape").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        images.append(_parse_line(line, where=where, label_width=label_width))
    if not images:
        raise NotFoundError(f"{file}: the list is empty")
    return ImageList(root=root, images=tuple(images))


def _parse_line(line: str, *, where: str, label_width: int | None) -> Picture:
    words = [word.strip() for word in line.split("\t")]
    try:
        index, labels, path = int(words[0]), tuple(map(float, words[1:-1])), words[-1]
        struct.pack(f"<Q{len(labels)}f", index, *labels)  # as in a record
    except (ValueError, OverflowError, struct.error):
        labels, path = (), ""
    if not labels or not path or not all(map(math.isfinite, labels)):
        raise ClusterError(
            f"{where}: not an index, labels and a path separated by tabs: {line.strip()[:80]!r}",
            hint="an index is a whole number from 0 to 2^64 - 1, a label a 32-bit float",
        )
    if label_width is None and len(labels) > 1:
        raise UsageError(
            f"{where}: has {len(labels)} labels",
            hint="--label-width N packs the first N of each line, --label-width all packs all",
        )
    if label_width and len(labels) < label_width:
        raise UsageError(f"{where}: has {len(labels)} labels, fewer than --label-width {label_width}")
    return Picture(path=path, labels=labels[: label_width or len(labels)], record_id=index)


def shuffle(listed: ImageList, *, seed: int) -> ImageList:
    """The same pictures in an order that depends only on the seed."""
    images = list(listed.images)
    random.Random(seed).shuffle(images)  # noqa: S311 - an order, not a secret
    return replace(listed, images=tuple(images))


def divide(images: Sequence[Picture], *, train_ratio: float, test_ratio: float) -> dict[str, Sequence[Picture]]:
    """The parts `test`, `train` and `val` (the rest), cut in this order, as im2rec.py does, without empty ones.

    With train_ratio 1, one part named "". Raises UsageError for impossible ratios.
    """
    if not (0 < train_ratio <= 1 and 0 <= test_ratio < 1) or train_ratio + test_ratio > 1 + 1e-9:
        raise UsageError(
            f"--train-ratio {train_ratio:g} and --test-ratio {test_ratio:g}: from 0 to 1, and at most 1 together"
        )
    if train_ratio == 1:
        return {"": images}
    test = int(len(images) * test_ratio)
    all_used = math.isclose(train_ratio + test_ratio, 1)
    rest = len(images) if all_used else test + int(len(images) * train_ratio)
    parts = {"test": images[:test], "train": images[test:rest], "val": images[rest:]}
    return {name: part for name, part in parts.items() if part}


def render_line(image: Picture) -> str:
    """A picture's line of a list, as im2rec.py writes it."""
    return "\t".join([str(image.record_id), *(f"{label:f}" for label in image.labels), image.path]) + "\n"
