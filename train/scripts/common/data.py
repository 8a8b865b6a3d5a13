"""Training and validation data, read by MXNet itself from local folders or s3://."""

import functools
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx

from common.errors import ScriptError

IMAGE_SHAPE = (1, 28, 28)  # channels, rows, columns
_SCALE = 1 / 256  # what MNISTIter does to idx files, done to decoded images too


class Part(NamedTuple):
    """Which part of the training data is this worker's."""

    index: int
    count: int


class Source(NamedTuple):
    """Where data comes from.

    open_train: makes the iterator over one part in batches of a size.
    open_val: makes one whole pass over all validation data in batches of a size, the last one padded; None:
    no data.
    """

    open_train: Callable[[Part, int], mx.io.DataIter]
    open_val: Optional[Callable[[int], Iterable[mx.io.DataBatch]]]


def mnist_source(folder: str, seed: int) -> Source:
    """MNIST's four idx-ubyte files, under their own names, in a local folder or below s3://."""

    def file(name: str) -> str:
        return folder.rstrip("/") + "/" + name

    def open_train(part: Part, batch_size: int) -> mx.io.DataIter:
        return mx.io.MNISTIter(
            image=file("train-images-idx3-ubyte"), label=file("train-labels-idx1-ubyte"),
            batch_size=batch_size, num_parts=part.count, part_index=part.index, shuffle=True, seed=seed,
            silent=True,
        )  # fmt: skip

    @functools.lru_cache(maxsize=1)  # MNISTIter holds whole files in memory in any case: read them once
    def open_val(batch_size: int) -> List[mx.io.DataBatch]:
        # One by one, because MNISTIter leaves out the rest that does not fill a batch.
        single = mx.io.MNISTIter(
            image=file("t10k-images-idx3-ubyte"), label=file("t10k-labels-idx1-ubyte"), batch_size=1,
            shuffle=False, silent=True,
        )  # fmt: skip
        return list(_rebatched(single, batch_size))

    return Source(open_train, open_val)


def record_source(train: str, val: Optional[str], seed: int, threads: int) -> Source:
    """RecordIO files of encoded images: `a.rec`, `a.rec;b.rec`, or a folder with a trailing slash."""

    def open_records(uri: str, part: Part, batch_size: int, *, shuffle: bool) -> mx.io.DataIter:
        return mx.io.ImageRecordIter(
            path_imgrec=uri, data_shape=IMAGE_SHAPE, batch_size=batch_size, num_parts=part.count,
            part_index=part.index, shuffle=shuffle, seed=seed, scale=_SCALE, preprocess_threads=threads,
            verbose=False,
        )  # fmt: skip

    def open_train(part: Part, batch_size: int) -> mx.io.DataIter:
        return open_records(train, part, batch_size, shuffle=True)

    # Opened anew for each pass: the iterator fills the last batch with the first examples, and, when reset,
    # leaves those out of its next pass.
    def open_val(batch_size: int) -> mx.io.DataIter:
        return open_records(val, Part(0, 1), batch_size, shuffle=False)

    return Source(open_train, open_val if val else None)


def count_examples(source: Source, part: Part) -> int:
    """Reads the part once to count its examples: neither format says how many there are in a part."""
    try:
        return sum(1 for _ in source.open_train(part, 1))
    except StopIteration:  # MXNet reads the first batch at once
        return 0


def open_epochs(source: Source, part: Part, batch_size: int, batches: int) -> "EpochIter":
    """The part in batches, so many per epoch. Raises ScriptError where it does not fill one."""
    try:
        return EpochIter(source.open_train(part, batch_size), batches)
    except StopIteration:
        raise _too_small(batch_size) from None


class EpochIter(mx.io.DataIter):
    """Exactly `batches` batches per epoch from an iterator of any length.

    An epoch goes on where the last one ended, and begins the data again where it is used up.
    """

    def __init__(self, endless: mx.io.DataIter, batches: int) -> None:
        super(EpochIter, self).__init__(endless.batch_size)
        self.provide_data = endless.provide_data
        self.provide_label = endless.provide_label
        self._inner = endless
        self._batches = batches
        self._done = 0

    def reset(self) -> None:
        """Begin the next epoch."""
        self._done = 0

    def next(self) -> mx.io.DataBatch:
        """The next batch; raises ScriptError where the data does not fill one."""
        if self._done == self._batches:
            raise StopIteration
        self._done += 1
        try:
            return self._inner.next()
        except StopIteration:
            self._inner.reset()
        try:
            return self._inner.next()
        except StopIteration:
            raise _too_small(self.batch_size) from None


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
