"""Learns handwritten digits from RecordIO files in S3. Each worker reads its part of the records."""

import argparse
import logging
import os

import mxnet as mx

BATCH = 50
EXAMPLES = 1500

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--kv-store", default="local")
args = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(message)s")

store = mx.kv.create(args.kv_store)
context = mx.gpu() if mx.context.num_gpus() else mx.cpu()
data_url = os.environ["CLUSTER_DATA_URL"]  # [data] url


def records(folder, **options):
    return mx.io.ImageRecordIter(
        path_imgrec=f"{data_url}{folder}/",
        data_shape=(1, 28, 28),
        batch_size=BATCH,
        scale=1 / 255,
        verbose=False,
        **options,
    )


train = records("train", num_parts=store.num_workers, part_index=store.rank, shuffle=True)
# Parts may differ by a record, and dist_sync waits for the slowest worker, so all workers read as many batches.
train = mx.io.ResizeIter(train, EXAMPLES // BATCH // store.num_workers)

network = mx.sym.Flatten(mx.sym.Variable("data"))
network = mx.sym.Activation(mx.sym.FullyConnected(network, num_hidden=64), act_type="relu")
network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(network, num_hidden=10), name="softmax")
module = mx.mod.Module(network, context=context)
module.fit(
    train,
    num_epoch=args.epochs,
    kvstore=store,
    initializer=mx.init.Xavier(),
    optimizer_params={"learning_rate": 0.2, "momentum": 0.9, "rescale_grad": 1 / BATCH / store.num_workers},
)
if store.rank == 0:
    accuracy = module.score(records("val"), "acc")[0][1]
    print(f"validation accuracy {accuracy:.2f}, trained by {store.num_workers} workers", flush=True)
