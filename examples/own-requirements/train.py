"""Finds the weights of a linear function. Its settings are in a YAML file, and its result is a table."""

import argparse
from pathlib import Path

import mxnet as mx
import yaml
from mxnet import autograd, gluon
from tabulate import tabulate

BATCH = 64

parser = argparse.ArgumentParser()
parser.add_argument("--settings", default="settings.yaml")
parser.add_argument("--kv-store", default="local")
args = parser.parse_args()

settings = yaml.safe_load(Path(args.settings).read_text())
store = mx.kv.create(args.kv_store)
context = mx.gpu() if mx.context.num_gpus() else mx.cpu()
mx.random.seed(store.rank)
wanted = mx.nd.array(settings["weights"], ctx=context)

network = gluon.nn.Dense(1, use_bias=False)
network.initialize(ctx=context)
trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": settings["learning_rate"]}, kvstore=store)
loss_of = gluon.loss.L2Loss()
for _ in range(settings["steps"]):
    data = mx.nd.random.normal(shape=(BATCH, len(settings["weights"])), ctx=context)
    with autograd.record():
        loss = loss_of(network(data), mx.nd.dot(data, wanted))
    loss.backward()
    trainer.step(BATCH * store.num_workers)

if store.rank == 0:
    found = network.weight.data(context).asnumpy()[0]
    rows = zip(settings["weights"], found)
    print(tabulate(rows, headers=["wanted", "found"], floatfmt=".2f"), flush=True)
