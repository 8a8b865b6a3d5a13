"""Trains a small network on images and prints how fast it reads them. bench/reading.py runs it on a node.

    epochs.py URI EPOCHS BATCH_SIZE SIDE      prints "READ {...}"

SIDE: the side in pixels of the square that is cut out of each image at random.
first_batch_at: the time of the first batch, in seconds since 1970. samples_per_s: the speed of each epoch; in the first
epoch, from the second batch on.
"""

import json
import os
import sys
import time

import mxnet as mx


def main() -> None:
    """Trains on the images, and prints the speed."""
    uri, (epochs, batch_size, side) = sys.argv[1], map(int, sys.argv[2:])
    # Each worker trains on all images by itself; without a connection, the servers would wait for it.
    servers = mx.kv.create("dist_sync") if int(os.environ.get("DMLC_NUM_WORKER", "1")) > 1 else None
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
    rates, first_batch_at = [], None
    for _ in range(epochs):
        count, began_at = 0, time.time()
        for batch in reader:
            with mx.autograd.record():
                error = loss(net(batch.data[0] / 255), batch.label[0])
            error.backward()
            trainer.step(batch_size)
            error.wait_to_read()
            if first_batch_at is None:
                first_batch_at = began_at = time.time()
            else:
                count += batch_size
        rates.append(count / (time.time() - began_at))
        reader.reset()
    del servers
    sys.stdout.write("READ " + json.dumps({"first_batch_at": first_batch_at, "samples_per_s": rates}) + "\n")


if __name__ == "__main__":
    main()
