"""AlexNet in one tower (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014)."""

import mxnet as mx

from networks import layers


def alexnet(data: mx.sym.Symbol) -> mx.sym.Symbol:
    """Five convolutions, and two wide layers with dropout."""
    data = layers.relu(layers.conv(data, "conv1", 64, 11, stride=4, pad=2, bias=True), "relu1")
    data = layers.max_pool(data, "pool1", 3, stride=2)
    data = layers.relu(layers.conv(data, "conv2", 192, 5, pad=2, bias=True), "relu2")
    data = layers.max_pool(data, "pool2", 3, stride=2)
    for number, filters in enumerate((384, 256, 256), start=3):
        data = layers.relu(layers.conv(data, f"conv{number}", filters, 3, pad=1, bias=True), f"relu{number}")
    data = mx.sym.Flatten(layers.max_pool(data, "pool5", 3, stride=2), name="flatten")
    for number in (6, 7):
        data = mx.sym.Dropout(data, p=0.5, name=f"drop{number}")
        data = layers.relu(layers.dense(data, f"fc{number}", 4096), f"relu{number}")
    return data
