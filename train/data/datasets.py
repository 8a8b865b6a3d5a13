"""Public datasets by name: where their files are, and what they must be. Data; to add one, add it here.

Sizes and SHA-256 are of the files as their authors publish them, by whom MD5s alone are given. They are those in the
checksums of TensorFlow Datasets (url_checksums/mnist.txt, cifar10.txt) and, for MNIST's MD5s, of torchvision
(torchvision/datasets/mnist.py); CIFAR-10's MD5 is on https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from train.data import convert, idx
from train.data.convert import Written
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


DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="mnist",
            title="70000 handwritten digits, 28 by 28, grey",
            sources=(
                Source(
                    name=f"{idx.TRAIN_IMAGES}.gz",
                    size_bytes=9912422,
                    sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    mirrors=_MNIST,
                ),
                Source(
                    name=f"{idx.TRAIN_LABELS}.gz",
                    size_bytes=28881,
                    sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    mirrors=_MNIST,
                ),
                Source(
                    name=f"{idx.VAL_IMAGES}.gz",
                    size_bytes=1648877,
                    sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    mirrors=_MNIST,
                ),
                Source(
                    name=f"{idx.VAL_LABELS}.gz",
                    size_bytes=4542,
                    sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    mirrors=_MNIST,
                ),
            ),
            write=convert.write_mnist,
            shards=8,
        ),
        Dataset(
            name="cifar10",
            title="60000 photographs of 10 kinds, 32 by 32, in colour",
            sources=(
                Source(
                    name=convert.CIFAR_ARCHIVE,
                    size_bytes=170052171,
                    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    mirrors=_CIFAR,
                ),
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
}
