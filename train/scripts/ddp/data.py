"""Handwritten digits as tensors, and each rank's part of them in batches."""

import argparse
import io
import itertools
import math
import struct
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

import torch
from common import ScriptError, staging
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from ddp.ranks import Ranks

Batches = Iterable[Tuple[torch.Tensor, torch.Tensor]]
_EDGE = 28  # pixels
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_VAL = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Digits(NamedTuple):
    """All training and validation images: bytes of shape (count, 1, 28, 28), and their labels."""

    train: TensorDataset
    val: Optional[TensorDataset]


def load(options: argparse.Namespace) -> Digits:
    """Reads the data that the options name. Raises ScriptError if it cannot be read."""
    if options.data_dir:
        return Digits(_read_idx_pair(options.data_dir, _TRAIN), _read_idx_pair(options.data_dir, _VAL))
    return Digits(_read_records(options.data_train), _read_records(options.data_val) if options.data_val else None)


class TrainLoader:
    """This rank's part of the training images, in a different order in every epoch."""

    def __init__(self, images: TensorDataset, batch_size: int, ranks: Ranks, seed: int) -> None:
        self._sampler = DistributedSampler(images, ranks.count, ranks.rank, shuffle=True, seed=seed, drop_last=True)
        # batch_size=None: the sampler yields whole batches, which TensorDataset looks up at once.
        batches = BatchSampler(self._sampler, batch_size, drop_last=True)
        self._images = images
        self._batches = batches
        self._loader = DataLoader(images, sampler=batches, batch_size=None)

    def epoch(self, number: int, begin: int = 0) -> Batches:
        """The batches of an epoch from number `begin` on.

        Every rank has the same number of them: gradients are averaged after each.
        """
        self._sampler.set_epoch(number)
        if not begin:
            return self._loader
        rest = list(itertools.islice(self._batches, begin, None))  # indexes of images: skipped ones are not read
        return DataLoader(self._images, sampler=rest, batch_size=None)


def val_batches(images: TensorDataset, batch_size: int, ranks: Ranks) -> Batches:
    """This rank's part of the validation images: every image is in exactly one rank's part."""
    own = range(ranks.rank, len(images), ranks.count)
    return DataLoader(images, sampler=BatchSampler(own, batch_size, drop_last=False), batch_size=None)


# -- idx-ubyte files (http://yann.lecun.com/exdb/mnist) ----------------------------------------------------------------


def _read_idx_pair(folder: str, names: Tuple[str, str]) -> TensorDataset:
    images, labels = (_read_idx(staging.find_file(folder.rstrip("/") + "/" + name)) for name in names)
    if images.shape[1:] != (_EDGE, _EDGE) or labels.shape != images.shape[:1]:
        raise ScriptError(f"{folder}: {names[0]} has {tuple(images.shape)} pixels, {names[1]} {len(labels)} labels")
    return TensorDataset(images.unsqueeze(1), labels.long())


def _read_idx(path: str) -> torch.Tensor:
    """The content of an idx file, after a header with the number of axes and their lengths."""
    content = _read(path)
    try:
        zero, kind, axes = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{axes}I", content, 4)
        content = content[4 + 4 * axes :]
    except struct.error:
        zero = kind = -1
        shape = ()
    if (zero, kind) != (0, 8) or len(content) != math.prod(shape):  # 8: unsigned bytes
        raise ScriptError(f"{path} is not a whole idx-ubyte file; if its name ends with .gz, unzip it")
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


def _read(path: str) -> bytearray:
    try:
        with open(path, "rb") as file:
            return bytearray(file.read())
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror or error}") from error


# -- RecordIO files of encoded images ----------------------------------------------------------------------------------


def _read_records(uri: str) -> TensorDataset:
    try:
        from mxnet_cluster.errors import ClusterError  # noqa: PLC0415 - only here
        from mxnet_cluster.records import decode_image, iterate_records  # noqa: PLC0415 - only here
    except ImportError as error:
        raise ScriptError(f"reading RecordIO files needs this project's package mxnet_cluster: {error}") from error
    decode = _find_decoder()
    images: List[torch.Tensor] = []
    labels: List[int] = []
    try:
        for payload in iterate_records(";".join(staging.find_files(uri))):
            record = decode_image(payload, name=uri)
            images.append(decode(record.image))
            labels.append(int(record.labels[0]))
    except ClusterError as error:
        raise ScriptError(str(error)) from error
    if not images or any(image.shape != (_EDGE, _EDGE) for image in images):
        raise ScriptError(f"{uri}: no images, or images of another size than {_EDGE} by {_EDGE} pixels")
    return TensorDataset(torch.stack(images).unsqueeze(1), torch.tensor(labels))


def _find_decoder() -> Callable[[bytes], torch.Tensor]:
    """Returns a function that decodes an image to grey pixels."""
    try:
        from PIL import Image  # noqa: PLC0415 - PyTorch does not need it
    except ImportError as error:
        raise ScriptError('decoding images needs Pillow: [bootstrap] packages = ["pillow"], then cluster up') from error

    def decode(content: bytes) -> torch.Tensor:
        image = Image.open(io.BytesIO(content)).convert("L")
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(image.height, image.width)

    return decode
