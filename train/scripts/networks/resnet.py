"""Residual networks: ResNet (He et al., 2015 and, pre-activated, 2016) and ResNeXt (Xie et al., 2016).

Where a bottleneck halves the image, its 3 by 3 convolution does so, as everybody has done since ("v1.5").
"""

from typing import NamedTuple, Sequence

import mxnet as mx

from networks import layers

_UNITS = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3),
    200: (3, 24, 36, 3), 269: (3, 30, 48, 8),
}  # fmt: skip
_BASIC = (18, 34)  # the others have bottlenecks


class Shape(NamedTuple):
    """What all units of a network have in common.

    widths: channels inside the units of each stage; expansion: how many times as many come out of it. bottleneck:
    convolutions of 1, 3 and 1 pixels instead of 3 and 3. groups: of the 3 by 3 convolution in a bottleneck.
    """

    units: Sequence[int]
    widths: Sequence[int]
    expansion: int
    bottleneck: bool
    groups: int = 1


def resnet(data: mx.sym.Symbol, num_layers: int, *, small: bool) -> mx.sym.Symbol:
    """ResNet of 2015; small: with three stages, for images like CIFAR's."""
    return _post_activated(data, _resnet_shape(num_layers, small=small), small=small)


def resnext(data: mx.sym.Symbol, num_layers: int, *, small: bool) -> mx.sym.Symbol:
    """ResNeXt with 32 groups of 4 channels; small: with three stages, for images like CIFAR's."""
    if small:
        units = [(num_layers - 2) // 9] * 3
        shape = Shape(units, (128, 256, 512), 2, bottleneck=True, groups=32)
    else:
        shape = Shape(_UNITS[num_layers], (128, 256, 512, 1024), 2, bottleneck=True, groups=32)
    return _post_activated(data, shape, small=small)


def resnet_v2(data: mx.sym.Symbol, num_layers: int, *, small: bool) -> mx.sym.Symbol:
    """ResNet of 2016: normalized and rectified before each convolution, not after it."""
    shape = _resnet_shape(num_layers, small=small)
    if small:
        data = layers.conv(data, "stem_conv", 16, 3, pad=1)
    else:
        data = layers.conv_bn(data, "stem", 64, 7, stride=2, pad=3)
        data = layers.max_pool(data, "stem_pool", 3, stride=2, pad=1)
    channels = 16 if small else 64
    for stage, (units, width) in enumerate(zip(shape.units, shape.widths), start=1):  # noqa: B905 - Python 3.6
        for unit in range(1, units + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            data = _unit_v2(data, f"stage{stage}_unit{unit}", width, shape, stride=stride, channels=channels)
            channels = width * shape.expansion
    data = layers.relu(layers.batch_norm(data, "last_bn"), "last_relu")
    return layers.whole_average(data, "pool")


def _resnet_shape(num_layers: int, *, small: bool) -> Shape:
    if small:
        return Shape([(num_layers - 2) // 6] * 3, (16, 32, 64), 1, bottleneck=False)
    bottleneck = num_layers not in _BASIC
    return Shape(_UNITS[num_layers], (64, 128, 256, 512), 4 if bottleneck else 1, bottleneck)


def _post_activated(data: mx.sym.Symbol, shape: Shape, *, small: bool) -> mx.sym.Symbol:
    if small:
        channels = 64 if shape.bottleneck else 16
        data = layers.conv_bn(data, "stem", channels, 3, pad=1)
    else:
        channels = 64
        data = layers.conv_bn(data, "stem", channels, 7, stride=2, pad=3)
        data = layers.max_pool(data, "stem_pool", 3, stride=2, pad=1)
    for stage, (units, width) in enumerate(zip(shape.units, shape.widths), start=1):  # noqa: B905 - Python 3.6
        for unit in range(1, units + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            data = _unit(data, f"stage{stage}_unit{unit}", width, shape, stride=stride, channels=channels)
            channels = width * shape.expansion
    return layers.whole_average(data, "pool")


def _unit(data: mx.sym.Symbol, name: str, width: int, shape: Shape, *, stride: int, channels: int) -> mx.sym.Symbol:
    out = width * shape.expansion
    if shape.bottleneck:
        branch = layers.conv_bn(data, f"{name}_a", width, 1)
        branch = layers.conv_bn(branch, f"{name}_b", width, 3, stride=stride, pad=1, groups=shape.groups)
        branch = layers.conv_bn(branch, f"{name}_c", out, 1, rectified=False)
    else:
        branch = layers.conv_bn(data, f"{name}_a", width, 3, stride=stride, pad=1)
        branch = layers.conv_bn(branch, f"{name}_b", out, 3, pad=1, rectified=False)
    if stride > 1 or channels != out:
        data = layers.conv_bn(data, f"{name}_shortcut", out, 1, stride=stride, rectified=False)
    return layers.relu(branch + data, f"{name}_relu")


def _unit_v2(data: mx.sym.Symbol, name: str, width: int, shape: Shape, *, stride: int, channels: int) -> mx.sym.Symbol:
    def activated(inner: mx.sym.Symbol, part: str) -> mx.sym.Symbol:
        return layers.relu(layers.batch_norm(inner, f"{name}_{part}_bn"), f"{name}_{part}_relu")

    out = width * shape.expansion
    first = activated(data, "a")
    if shape.bottleneck:
        branch = layers.conv(first, f"{name}_a_conv", width, 1)
        branch = layers.conv(activated(branch, "b"), f"{name}_b_conv", width, 3, stride=stride, pad=1)
        branch = layers.conv(activated(branch, "c"), f"{name}_c_conv", out, 1)
    else:
        branch = layers.conv(first, f"{name}_a_conv", width, 3, stride=stride, pad=1)
        branch = layers.conv(activated(branch, "b"), f"{name}_b_conv", out, 3, pad=1)
    if stride > 1 or channels != out:
        data = layers.conv(first, f"{name}_shortcut_conv", out, 1, stride=stride)
    return branch + data
