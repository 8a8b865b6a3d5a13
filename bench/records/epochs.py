"""Trains a small network on images and tells how fast it read them: run on a node by bench/reading.py.

    epochs.py URI EPOCHS BATCH_SIZE SIDE      prints "READ {...}"

SIDE: of the square that is cut out of each image, at random, in pixels.
first_batch_s: from the start of the import of MXNet to the first batch. samples_per_s: of each epoch, the first one
from its second batch on.
"""

import json
import sys
import time

STARTED_AT = time.time()
import mxnet as mx  # noqa: E402 - after the clock has started


def main() -> None:
    """Read and train."""
    uri, (epochs, batch_size, side) = sys.argv[1], map(int, sys.argv[2:])
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Conv2D(4, 5, strides=4, activation="relu"), mx.gluon.nn.Dense(10))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    reader = mx.io.ImageRecordIter(
        path_imgrec=uri,
        data_shape=(3, side, side),
        batch_size=batch_size,
        preprocess_threads=1,
        verbose=False,
        rand_crop=True,
        rand_mirror=True,
    )
    rates, first_batch_s = [], None
    for _ in range(epochs):
        count, began_at = 0, time.time()
        for batch in reader:
            with mx.autograd.record():
                error = loss(net(batch.data[0] / 255), batch.label[0])
            error.backward()
            trainer.step(batch_size)
            error.wait_to_read()
            if first_batch_s is None:
                first_batch_s, began_at = time.time() - STARTED_AT, time.time()
            else:
                count += batch_size
        rates.append(count / (time.time() - began_at))
        reader.reset()
    sys.stdout.write("READ " + json.dumps({"first_batch_s": first_batch_s, "samples_per_s": rates}) + "\n")


if __name__ == "__main__":
    main()
