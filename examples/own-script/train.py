"""Learns in which quadrant a point is. Each worker generates its own points; the servers add up the gradients."""

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from network import make_network

BATCH = 64
STEPS_PER_EPOCH = 50

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--kv-store", default="local")
args = parser.parse_args()

store = mx.kv.create(args.kv_store)
context = mx.gpu() if mx.context.num_gpus() else mx.cpu()
mx.random.seed(store.rank)

network = make_network(args.hidden)
network.initialize(mx.init.Xavier(), ctx=context)
trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(args.epochs):
    accuracy = mx.metric.Accuracy()
    for _ in range(STEPS_PER_EPOCH):
        points = mx.nd.random.uniform(-1, 1, shape=(BATCH, 2), ctx=context)
        quadrants = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
        with autograd.record():
            output = network(points)
            loss = loss_of(output, quadrants)
        loss.backward()
        trainer.step(BATCH * store.num_workers)
        accuracy.update(quadrants, output)
    print(f"epoch {epoch}: worker {store.rank} of {store.num_workers}, accuracy {accuracy.get()[1]:.2f}", flush=True)

# All workers have the same weights: one saves them, in the folder that the job runs in.
if store.rank == 0:
    network.save_parameters("quadrants.params")
