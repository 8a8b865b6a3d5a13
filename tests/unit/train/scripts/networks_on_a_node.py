# ruff: noqa: ANN001, ANN201, NPY002, T201 - a program that runs with MXNet
"""Builds every network of the scripts with this Python's MXNet, counts its parameters and trains it once.

Usage: networks_on_a_node.py FOLDER few|all

FOLDER is train/scripts. few: train only two networks, and build no network twice.
"""

import sys

sys.path.insert(0, sys.argv[1])

import mxnet as mx
import numpy as np
from common import ScriptError, network_names
from common.fit import AddingModule, _write_arrays
from networks import build

LARGE = (3, 224, 224)
SMALL = (3, 28, 28)
# Numbers of weights, biases and batch normalization's parameters, from the papers or publications that quote them.
# Integers are exact.
PUBLISHED = (
    ("resnet", 18, LARGE, 11_689_512),
    ("resnet", 50, LARGE, 25.56e6),
    ("resnet-v2", 50, LARGE, 25.55e6),
    ("resnet", 20, SMALL, 0.27e6),
    ("resnet", 110, SMALL, 1.7e6),
    ("vgg", 11, LARGE, 132_863_336),
    ("vgg", 16, LARGE, 138_357_544),
    ("alexnet", None, LARGE, 61_100_840),  # one tower
    ("inception-v3", None, (3, 299, 299), 23_834_568),  # without the auxiliary classifier
    ("mobilenet", None, LARGE, 4_231_976),
)
TRAINED = (
    ("mlp", None, 28), ("lenet", None, 28), ("resnet", 8, 28), ("resnet", 18, 33), ("resnet", 50, 33),
    ("resnet-v2", 8, 28), ("resnet-v2", 50, 33), ("vgg", 11, 32),
    ("alexnet", None, 63), ("inception-v3", None, 75),
    ("mobilenet", None, 28),
)  # fmt: skip


def count(network, depth, shape, classes):
    symbol = build(network, depth, classes, shape)
    shapes, _, _ = symbol.infer_shape(data=(1, *shape))
    return sum(
        int(np.prod(shape))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
        if name not in {"data", "softmax_label"}
    )


def check_count(network, depth, shape, published):
    found = count(network, depth, shape, 10 if shape == SMALL else 1000)
    exact = isinstance(published, int)
    assert found == published if exact else abs(found / published - 1) < 0.02, (network, depth, found, published)


def check_half_precision(network, depth, size):
    """Checks, as far as a CPU allows, that every weight has half precision and the softmax does not."""
    symbol = build(network, depth, 10, (3, size, size), dtype="float16")
    types, outputs, _ = symbol.infer_type(data="float32")
    halves = [name for name, kind in zip(symbol.list_arguments(), types, strict=True) if kind is np.float16]
    assert all(name in halves for name in symbol.list_arguments() if name.endswith(("_weight", "_bias")))
    assert outputs == [np.float32]


def check_half_precision_updates():
    """Weights are created and updated in half precision, with a single-precision copy in the optimizer's state."""
    module = mx.mod.Module(build("resnet", 8, 10, (3, 28, 28), dtype="float16"), context=mx.cpu())
    module.bind([("data", (2, 3, 28, 28))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True})
    module.update()
    weights = [value for name, value in module.get_params()[0].items() if name.endswith("_weight")]
    assert weights
    assert all(weight.dtype is np.float16 and np.isfinite(weight.asnumpy()).all() for weight in weights)


def check_training(network, depth, size):
    module = mx.mod.Module(build(network, depth, 10, (3, size, size)), context=mx.cpu())
    module.bind([("data", (2, 3, size, size))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier(magnitude=3))
    before = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    image = mx.nd.random.uniform(-1, 1, shape=(2, 3, size, size))
    module.forward_backward(mx.io.DataBatch([image], [mx.nd.array([1, 2])]))
    module.update()
    output = module.get_outputs()[0].asnumpy()
    assert output.shape == (2, 10), network
    assert np.allclose(output.sum(axis=1), 1), network
    after = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
    assert all(np.isfinite(value).all() for value in after.values()), network
    changed = [name for name in after if (after[name] != before[name]).any()]
    assert len(changed) > len(after) / 2, (network, changed)


def trained(batch_size, steps, store):
    mx.random.seed(1)
    np.random.seed(1)
    draw = np.random.RandomState(0)
    images, labels = draw.uniform(size=(128, 1, 28, 28)).astype("f"), draw.randint(0, 10, 128).astype("f")
    module = AddingModule(build("mlp", None, 10, (1, 28, 28)), steps=steps, context=[mx.cpu()])
    params = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / (batch_size * steps)}
    data = mx.io.NDArrayIter(images, labels, batch_size, label_name="softmax_label")
    module.fit(data, num_epoch=3, kvstore=store, optimizer_params=params, initializer=mx.init.Xavier())
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def check_adding_up(store):
    """Four steps of 16 examples for one update equal one step of 64."""
    whole, parts = trained(64, 1, store), trained(16, 4, store)
    assert all(np.allclose(whole[name], parts[name], atol=1e-6) for name in whole)
    assert any(not np.allclose(whole[name], value, atol=1e-3) for name, value in trained(16, 1, store).items())


def check_names(rows):
    """A network's parameters have the same names however many were built before in the process."""
    for network, depth, size in rows:
        first, second = (build(network, depth, 10, (3, size, size)).list_arguments() for _ in range(2))
        assert first == second, network


def check_full_disk():
    """A checkpoint that was not written completely is an error: MXNet does not notice a disk that fills up last."""
    try:
        _write_arrays("/dev/full", {"weight": mx.nd.ones((10,))})
    except ScriptError as error:
        return str(error)
    return None


assert {network for network, _, _ in TRAINED} == set(network_names.BY_NAME)
for row in PUBLISHED:
    check_count(*row)
chosen = TRAINED if sys.argv[2] == "all" else TRAINED[1:3]
for row in chosen:
    check_training(*row)
    check_half_precision(*row)
check_half_precision_updates()
check_names(chosen)
assert check_full_disk() == "/dev/full was not written completely: is the disk full?"
for kind in ("local", "device"):
    check_adding_up(kind)
print(f"{len(PUBLISHED)} counted, {len(chosen)} trained")
