"""An own MXNet project as people have them: a package, a YAML file, images, TensorBoard, checkpoints."""

import argparse
import os

import mxnet as mx
import yaml
from mxnet import autograd, gluon
from shapes.data import find_images, load_batch
from shapes.model import make_net
from tensorboardX import SummaryWriter
from tqdm import tqdm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--kv-store", default="local")
    options = parser.parse_args()
    with open(options.config) as file:
        config = yaml.safe_load(file)

    store = mx.kv.create(options.kv_store)
    images = find_images(config["data"])
    mine = images[store.rank :: store.num_workers]
    net = make_net()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": config["lr"]}, kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    size = config["batch_size"]
    os.makedirs(config["out"], exist_ok=True)
    writer = SummaryWriter(os.path.join(config["out"], "tensorboard")) if store.rank == 0 else None
    for epoch in range(config["epochs"]):
        for begin in tqdm(range(0, len(mine) - size + 1, size), desc=f"epoch {epoch}", disable=store.rank != 0):
            pictures, labels = load_batch(mine[begin : begin + size])
            with autograd.record():
                loss = loss_of(net(pictures), labels)
            loss.backward()
            trainer.step(size * store.num_workers)
        if writer is not None:
            value = loss.mean().asscalar()
            writer.add_scalar("loss", value, epoch)
            print(f"epoch {epoch}: {len(images)} images, loss {value:.4f}")
            net.save_parameters(os.path.join(config["out"], f"checkpoint-{epoch}.params"))
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
