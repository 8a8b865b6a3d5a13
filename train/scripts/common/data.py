"""Training and validation data, read by MXNet itself from local folders or s3://."""

import argparse
import functools
import logging
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from common import ScriptError

logger = logging.getLogger()
# Images of 28 by 28 pixels in records. MNISTIter scales idx files in the same way.
MNIST_RECORDS = {"data_shape": (1, 28, 28), "scale": 1 / 256}


class Part(NamedTuple):
    """This worker's part of the training data."""

    index: int
    count: int


class Source(NamedTuple):
    """Where data comes from.

    open_train(part, batch_size, number): the iterator over a part, in the order of the pass with this number, from 0
    up. open_val(batch_size): one pass over all validation data, the last batch padded; None: there is none. reopens:
    each pass has its own order and iterator; False: the iterator is reset for the next pass.
    """

    open_train: Callable[[Part, int, int], mx.io.DataIter]
    open_val: Optional[Callable[[int], Iterable[mx.io.DataBatch]]]
    reopens: bool = False


def mnist_source(folder: str, seed: int) -> Source:
    """MNIST's four idx-ubyte files, under their own names, in a local folder or below s3://."""

    def file(name: str) -> str:
        return folder.rstrip("/") + "/" + name

    def open_train(part: Part, batch_size: int, _: int) -> mx.io.DataIter:
        return mx.io.MNISTIter(
            image=file("train-images-idx3-ubyte"), label=file("train-labels-idx1-ubyte"),
            batch_size=batch_size, num_parts=part.count, part_index=part.index, shuffle=True, seed=seed,
            silent=True,
        )  # fmt: skip

    @functools.lru_cache(maxsize=1)  # MNISTIter keeps whole files in memory anyway: read them once
    def open_val(batch_size: int) -> List[mx.io.DataBatch]:
        # One by one, because MNISTIter drops the rest that does not fill a batch.
        single = mx.io.MNISTIter(
            image=file("t10k-images-idx3-ubyte"), label=file("t10k-labels-idx1-ubyte"), batch_size=1,
            shuffle=False, silent=True,
        )  # fmt: skip
        return list(_rebatched(single, batch_size))

    return Source(open_train, open_val)


def record_source(options: argparse.Namespace, *, image: Dict[str, object], distort: Dict[str, object]) -> Source:
    """RecordIO files of encoded images, as --data-train and --data-val name them.

    image: ImageRecordIter's settings for all images; distort: more settings for training images.
    """

    def open_records(uri: str, index: Optional[str], part: Part, batch_size: int, **settings: object) -> mx.io.DataIter:
        if index:
            settings["path_imgidx"] = index
        return mx.io.ImageRecordIter(
            path_imgrec=uri, batch_size=batch_size, num_parts=part.count, part_index=part.index,
            preprocess_threads=options.data_nthreads, verbose=False, **image, **settings,
        )  # fmt: skip

    def open_train(part: Part, batch_size: int, number: int) -> mx.io.DataIter:
        # Opened again for each pass, so that its order does not depend on earlier passes, which a resumed training does
        # not read.
        seeds = {"seed": options.seed + number}
        if number and "seed_aug" in mx.io.ImageRecordIter.__doc__:
            seeds["seed_aug"] = options.seed + number
        return open_records(
            options.data_train, options.data_train_idx, part, batch_size, shuffle=True, **seeds, **distort
        )

    # Opened again for each pass: the iterator fills the last batch with the first examples, and, when reset,
    # leaves those out of its next pass.
    def open_val(batch_size: int) -> mx.io.DataIter:
        return open_records(options.data_val, options.data_val_idx, Part(0, 1), batch_size, shuffle=False)

    return Source(open_train, open_val if options.data_val else None, reopens=True)


def made_up_source(options: argparse.Namespace) -> Source:
    """One batch of random images and labels, repeated: measures everything except reading data."""
    return Source(lambda part, batch_size, _: MadeUpIter(options, part, batch_size), None)


class MadeUpIter(mx.io.DataIter):
    """The same random batch forever, a different one on each worker."""

    def __init__(self, options: argparse.Namespace, part: Part, batch_size: int) -> None:
        super().__init__(batch_size)
        draw = np.random.RandomState(options.seed + part.index)
        images = draw.uniform(-1, 1, (batch_size, *options.image_shape)).astype("float32")
        labels = draw.randint(0, options.num_classes, batch_size).astype("float32")
        self.provide_data = [mx.io.DataDesc("data", images.shape)]
        self.provide_label = [mx.io.DataDesc("softmax_label", labels.shape)]
        self._batch = mx.io.DataBatch(
            data=[mx.nd.array(images)], label=[mx.nd.array(labels)], pad=0,
            provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip

    def reset(self) -> None:
        """Does nothing: the iterator does not end."""

    def next(self) -> mx.io.DataBatch:
        """Returns the batch."""
        return self._batch


def count_examples(source: Source, part: Part) -> int:
    """Counts the examples of a part by reading it: neither format stores the number."""
    try:
        return sum(1 for _ in source.open_train(part, 1, 0))
    except StopIteration:  # MXNet reads the first batch immediately
        return 0


def open_epochs(source: Source, part: Part, batch_size: int, batches: int) -> "EpochIter":
    """The part in batches, with this many per epoch. Raises ScriptError if the part does not fill one."""
    try:
        return EpochIter(source, part, batch_size, batches)
    except StopIteration:
        raise _too_small(batch_size) from None


class EpochIter(mx.io.DataIter):
    """Exactly `batches` batches per epoch, from passes of any length over a part.

    An epoch continues where the last one ended. At the end of a pass, it begins the next one.
    """

    def __init__(self, source: Source, part: Part, batch_size: int, batches: int) -> None:
        super().__init__(batch_size)
        self._open = functools.partial(source.open_train, part, batch_size)
        self._reopens = source.reopens
        self._inner = self._open(0)
        self.provide_data = self._inner.provide_data
        self.provide_label = self._inner.provide_label
        self._batches = batches
        self._done = 0
        self._pass = 0
        self._since_begin = 0  # batches of this pass
        self._warned = False
        self.pass_batches = 0
        """The number of batches in a pass, which is the same for all passes; 0 until one has ended."""

    def move_to(self, epoch: int, batch: int, pass_batches: int) -> None:
        """Continues after these epochs and batches, as a training that has read all of them would.

        Reads the batches that it skips: at most one pass, or two if pass_batches is 0 (not known). Raises ScriptError.
        """
        self._done = batch
        self.pass_batches = pass_batches
        left = epoch * self._batches + batch
        if self.pass_batches:
            number, left = divmod(left, self.pass_batches)
            self._begin(number)
        while left:
            if self._read() is not None:
                left -= 1
                continue
            number, left = divmod(left, self.pass_batches)
            self._begin(1 + number)

    def reset(self) -> None:
        """Starts the next epoch."""
        self._done = 0

    def next(self) -> mx.io.DataBatch:
        """The next batch; raises ScriptError if the data does not fill one."""
        if self._done == self._batches:
            raise StopIteration
        self._done += 1
        batch = self._read()
        if batch is None:
            self._begin(self._pass + 1)
            batch = self._read()
        if batch is None:
            raise _too_small(self.batch_size)
        return batch

    def _read(self) -> Optional[mx.io.DataBatch]:
        """The next batch of this pass; None at its end."""
        try:
            batch = self._inner.next()
        except StopIteration:
            self.pass_batches = self._since_begin
            if not self.pass_batches:
                raise _too_small(self.batch_size) from None
            self._warn_if_small()
            return None
        self._since_begin += 1
        return batch

    def _begin(self, number: int) -> None:
        """Begins a pass, unless it has just begun."""
        if self._reopens and number != self._pass:
            try:
                self._inner = self._open(number)
            except StopIteration:
                raise _too_small(self.batch_size) from None
        elif self._since_begin:
            self._inner.reset()
        self._pass, self._since_begin = number, 0

    def _warn_if_small(self) -> None:
        if self.pass_batches < self._batches / 2 and not self._warned:
            self._warned = True
            logger.warning(
                "this worker's data has %d batches, an epoch %d: each epoch reads it several times; see --num-examples",
                self.pass_batches,
                self._batches,
            )


def _too_small(batch_size: int) -> ScriptError:
    return ScriptError(
        f"this worker's part of the training data does not fill one batch of {batch_size}; "
        "use a smaller --batch-size or fewer workers"
    )


def _rebatched(single: mx.io.DataIter, batch_size: int) -> Iterator[mx.io.DataBatch]:
    """Batches of `batch_size` from batches of one; the last is filled with its first example, `pad` times."""
    examples = []
    for batch in single:
        examples.append((batch.data[0].copy(), batch.label[0].copy()))
        if len(examples) == batch_size:
            yield _joined(examples, 0)
            examples = []
    if examples:
        pad = batch_size - len(examples)
        yield _joined(examples + examples[:1] * pad, pad)


def _joined(examples: List[Tuple[mx.nd.NDArray, mx.nd.NDArray]], pad: int) -> mx.io.DataBatch:
    data = mx.nd.concat(*[image for image, _ in examples], dim=0)
    label = mx.nd.concat(*[label for _, label in examples], dim=0)
    return mx.io.DataBatch(data=[data], label=[label], pad=pad)
