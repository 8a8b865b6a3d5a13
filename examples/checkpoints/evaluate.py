"""Loads a checkpoint from S3 and reports its accuracy on the validation data."""

import argparse
import os

import mxnet as mx

parser = argparse.ArgumentParser()
parser.add_argument("prefix")
parser.add_argument("epoch", type=int)
args = parser.parse_args()

network, weights, states = mx.model.load_checkpoint(args.prefix, args.epoch)
images = mx.io.ImageRecordIter(
    path_imgrec=os.environ["CLUSTER_DATA_URL"] + "val/",
    data_shape=(1, 28, 28),
    batch_size=50,
    scale=1 / 255,
    verbose=False,
)
module = mx.mod.Module(network, context=mx.gpu() if mx.context.num_gpus() else mx.cpu())
module.bind(images.provide_data, images.provide_label, for_training=False)
module.set_params(weights, states)
print(f"epoch {args.epoch}: validation accuracy {module.score(images, 'acc')[0][1]:.2f}", flush=True)
