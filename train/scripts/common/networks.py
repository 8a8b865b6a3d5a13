"""Symbols of the networks for 28 by 28 images of one channel. Each ends in a softmax over `num_classes`.

Pixels come as 0 to 1. The networks begin by moving them to about mean 0 and deviation 1, so that a saved model has it
too.
"""

from typing import Callable, Dict

import mxnet as mx

_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training images


def mlp(num_classes: int) -> mx.sym.Symbol:
    """A multi-layer perceptron: two hidden layers of 256 and 128 units."""
    layer = mx.sym.Flatten(_pixels(), name="flatten")
    for number, units in enumerate((256, 128), start=1):
        layer = mx.sym.FullyConnected(layer, num_hidden=units, name=f"fc{number}")
        layer = mx.sym.Activation(layer, act_type="relu", name=f"relu{number}")
    return _softmax(layer, num_classes)


def lenet(num_classes: int) -> mx.sym.Symbol:
    """LeNet-5's shape (LeCun et al., 1998) with rectified units and max pooling."""
    layer = _pixels()
    for number, filters in enumerate((20, 50), start=1):
        layer = mx.sym.Convolution(layer, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        layer = mx.sym.Activation(layer, act_type="relu", name=f"conv{number}_relu")
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{number}")
    layer = mx.sym.FullyConnected(mx.sym.Flatten(layer), num_hidden=256, name="fc1")
    layer = mx.sym.Activation(layer, act_type="relu", name="fc1_relu")
    return _softmax(layer, num_classes)


def _pixels() -> mx.sym.Symbol:
    return (mx.sym.Variable("data") - _MEAN) / _DEVIATION


def _softmax(layer: mx.sym.Symbol, num_classes: int) -> mx.sym.Symbol:
    layer = mx.sym.FullyConnected(layer, num_hidden=num_classes, name="output")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


BY_NAME: Dict[str, Callable[[int], mx.sym.Symbol]] = {"mlp": mlp, "lenet": lenet}
