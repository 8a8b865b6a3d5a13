"""VGG (Simonyan and Zisserman, 2014)."""

import mxnet as mx

from networks import layers

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


def vgg(data: mx.sym.Symbol, num_layers: int) -> mx.sym.Symbol:
    """Five stages of 3 by 3 convolutions, and two wide layers with dropout."""
    for stage, (convolutions, filters) in enumerate(zip(_CONVOLUTIONS[num_layers], _FILTERS), start=1):  # noqa: B905 - Python 3.6
        for number in range(1, convolutions + 1):
            name = f"conv{stage}_{number}"
            data = layers.relu(layers.conv(data, name, filters, 3, pad=1, bias=True), f"{name}_relu")
        data = layers.max_pool(data, f"pool{stage}", 2, stride=2)
    data = mx.sym.Flatten(data, name="flatten")
    for number in (6, 7):
        data = layers.relu(layers.dense(data, f"fc{number}", 4096), f"relu{number}")
        data = mx.sym.Dropout(data, p=0.5, name=f"drop{number}")
    return data
