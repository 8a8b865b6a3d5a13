"""A multi-layer perceptron and LeNet."""

import mxnet as mx

from networks import layers


def mlp(data: mx.sym.Symbol) -> mx.sym.Symbol:
    """A multi-layer perceptron: two hidden layers of 256 and 128 units."""
    data = mx.sym.Flatten(data, name="flatten")
    for number, units in enumerate((256, 128), start=1):
        data = layers.relu(layers.dense(data, f"fc{number}", units), f"relu{number}")
    return data


def lenet(data: mx.sym.Symbol) -> mx.sym.Symbol:
    """LeNet-5's shape (LeCun et al., 1998) with rectified units and max pooling."""
    for number, filters in enumerate((20, 50), start=1):
        data = layers.relu(layers.conv(data, f"conv{number}", filters, 5, bias=True), f"conv{number}_relu")
        data = layers.max_pool(data, f"pool{number}", 2, stride=2)
    data = mx.sym.Flatten(data, name="flatten")
    return layers.relu(layers.dense(data, "fc1", 256), "fc1_relu")
