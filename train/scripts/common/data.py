"""Training and validation data, read by MXNet itself from local folders or s3://."""

import argparse
import os
from typing import Iterable, NamedTuple, Optional

import mxnet as mx
import numpy as np

from common import ScriptError
from common.options import distortions, reader_settings

BENCHMARK_BATCHES = 500  # as in MXNet's own examples


class Part(NamedTuple):
    """A worker's part of the data."""

    index: int
    count: int


def open_train(options: argparse.Namespace, part: Part, batch_size: int, *, first_epoch: int = 0) -> mx.io.DataIter:
    """A worker's part of the training data, shuffled. Raises ScriptError if it does not fill a batch."""
    try:
        if options.benchmark:
            return _made_up(options, part, batch_size)
        if options.data_dir:
            return _open_idx(options.data_dir, "train", part, batch_size, shuffle=True, seed=options.seed)
        return _open_records(
            options, "train", part, batch_size,
            # A resumed training has another order than the one that the earlier one began with.
            shuffle=True, seed=options.seed + first_epoch, **distortions(options),
        )  # fmt: skip
    except StopIteration:  # MXNet reads the first batch immediately
        raise ScriptError(
            f"this worker's part of the training data does not fill one batch of {batch_size}; "
            "use a smaller --batch-size or fewer workers"
        ) from None


def count_examples(options: argparse.Namespace, part: Part) -> int:
    """Counts the examples of a part by reading them: neither format stores the number."""
    try:
        return sum(1 for _ in open_train(options, part, 1))
    except ScriptError:  # it is empty
        return 0


class Validation:
    """All validation data, for every worker. In the last batch, `pad` examples fill it up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._digits: Optional[mx.io.DataIter] = None

    def batches(self) -> Optional[Iterable[mx.io.DataBatch]]:
        """One pass over the data; None: there is none."""
        options = self._options
        if options.data_dir:
            self._digits = self._digits or _open_digits(options)
            self._digits.reset()
            return self._digits
        if not options.data_val:
            return None
        # Opened again for each pass: the iterator fills the last batch with the first examples, and, when reset,
        # leaves those out of its next pass.
        return _open_records(options, "val", Part(0, 1), options.batch_size, shuffle=False)


def _open_digits(options: argparse.Namespace) -> mx.io.DataIter:
    # One by one, because MNISTIter drops the rest that does not fill a batch.
    single = _open_idx(options.data_dir, "t10k", Part(0, 1), 1, shuffle=False)
    pairs = [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in single]
    images, labels = (np.concatenate(arrays) for arrays in zip(*pairs))  # noqa: B905 - 3.6
    return mx.io.NDArrayIter(images, labels, options.batch_size, label_name="softmax_label")


def _open_idx(folder: str, kind: str, part: Part, batch_size: int, **more: object) -> mx.io.DataIter:
    """MNIST's idx-ubyte files, under their own names. kind: train or t10k."""
    images, labels = (f"{folder.rstrip('/')}/{kind}-{content}-ubyte" for content in ("images-idx3", "labels-idx1"))
    return mx.io.MNISTIter(
        image=images, label=labels, batch_size=batch_size, num_parts=part.count, part_index=part.index, silent=True,
        **more,
    )  # fmt: skip


def _open_records(
    options: argparse.Namespace, kind: str, part: Part, batch_size: int, **more: object
) -> mx.io.DataIter:
    """RecordIO files of encoded images. kind: train or val."""
    index = getattr(options, f"data_{kind}_idx")
    if index:
        more["path_imgidx"] = index
    return mx.io.ImageRecordIter(
        path_imgrec=list_records(getattr(options, f"data_{kind}")), batch_size=batch_size, num_parts=part.count,
        part_index=part.index, preprocess_threads=options.data_nthreads, verbose=False,
        **reader_settings(options), **more,
    )  # fmt: skip


def list_records(uri: str) -> str:
    """The sorted files of a local folder: MXNet takes them in the file system's order, which differs between nodes.

    Without subfolders, such as that of the indexes: in a list, MXNet would read their files as records.
    """
    if not os.path.isdir(uri):
        return uri
    return ";".join(sorted(entry.path for entry in os.scandir(uri) if entry.is_file()))


def _made_up(options: argparse.Namespace, part: Part, batch_size: int) -> mx.io.DataIter:
    """One random batch, a different one on each worker: measures everything except reading data."""
    draw = np.random.RandomState(options.seed + part.index)
    images = draw.uniform(-1, 1, (batch_size, *options.image_shape)).astype("float32")
    labels = draw.randint(0, options.num_classes, batch_size).astype("float32")
    return mx.io.NDArrayIter(images, labels, batch_size, label_name="softmax_label")
