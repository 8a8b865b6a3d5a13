"""Public datasets by name: where their files are, and what they must be. Data; to add one, add it here.

Sizes and SHA-256 are of the files as their authors publish them, by whom MD5s alone are given. They are those in the
checksums of TensorFlow Datasets (url_checksums/mnist.txt, cifar10.txt) and, for MNIST's MD5s, of torchvision
(torchvision/datasets/mnist.py); CIFAR-10's MD5 is on https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from train.data import convert
from train.data.convert import TRAIN_IMAGES, TRAIN_LABELS, VAL_IMAGES, VAL_LABELS, Written
from train.data.digits import write_demo

_MNIST = (
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)
_CIFAR = (
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",
    "https://www.cs.toronto.edu/~kriz",  # the authors' own: they slow every connection down
    "https://cave.cs.toronto.edu/kriz",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file to download. mirrors: URLs of folders that have it, in the order in which they are tried."""

    name: str
    size_bytes: int
    sha256: str
    mirrors: tuple[str, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        """Where it is, in the order to try."""
        return tuple(f"{mirror}/{self.name}" for mirror in self.mirrors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A dataset. write: from the folder of its sources into another, in so many shards for training."""

    name: str
    title: str
    sources: tuple[Source, ...]
    write: Callable[[Path, Path, int], Written]
    shards: int

    @property
    def size_bytes(self) -> int:
        """Of all that is downloaded."""
        return sum(source.size_bytes for source in self.sources)

    def shard_names(self, shards: int | None) -> tuple[str, ...]:
        """The RecordIO files that `write` makes; None: as many as the dataset has by itself."""
        return (
            *(convert.shard_name("train", number) for number in range(shards or self.shards)),
            convert.shard_name("val", 0),
        )


def _write_digits(_: Path, folder: Path, shards: int) -> Written:
    return write_demo(folder, shards=shards)


def _sources(mirrors: tuple[str, ...], *files: tuple[str, int, str]) -> tuple[Source, ...]:
    return tuple(Source(name=name, size_bytes=size, sha256=sha256, mirrors=mirrors) for name, size, sha256 in files)


_ALL = (
    Dataset(
        name="mnist",
        title="70000 handwritten digits, 28 by 28, grey",
        sources=_sources(
            _MNIST,
            (f"{TRAIN_IMAGES}.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (f"{TRAIN_LABELS}.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (f"{VAL_IMAGES}.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (f"{VAL_LABELS}.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        write=convert.write_mnist,
        shards=8,
    ),
    Dataset(
        name="cifar10",
        title="60000 photographs of 10 kinds, 32 by 32, in colour",
        sources=_sources(
            _CIFAR,
            (convert.CIFAR_ARCHIVE, 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        ),
        write=convert.write_cifar10,
        shards=16,
    ),
    Dataset(
        name="digits",
        title="1797 handwritten digits, 28 by 28, grey; comes with scikit-learn, without a download",
        sources=(),
        write=_write_digits,
        shards=4,
    ),
)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
