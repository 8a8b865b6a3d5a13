"""Inception with batch normalization (Ioffe and Szegedy, 2015), and its small relative for 28 by 28 pixels."""

from typing import NamedTuple, Optional, Tuple

import mxnet as mx

from networks import layers


class Block(NamedTuple):
    """Channels of one block's four branches.

    one: of the 1 by 1 branch; None: the block halves the image, and has no such branch. three, double: of the 3 by
    3 branch and of the one with two of them, as (before, in) the convolutions. pool: what the pooling branch is
    projected to; None: max pooling, passed on as it is.
    """

    one: Optional[int]
    three: Tuple[int, int]
    double: Tuple[int, int]
    pool: Optional[int]
    pool_kind: str = "avg"


_BLOCKS = (
    ("3a", Block(64, (64, 64), (64, 96), 32)),
    ("3b", Block(64, (64, 96), (64, 96), 64)),
    ("3c", Block(None, (128, 160), (64, 96), None)),
    ("4a", Block(224, (64, 96), (96, 128), 128)),
    ("4b", Block(192, (96, 128), (96, 128), 128)),
    ("4c", Block(160, (128, 160), (128, 160), 128)),
    ("4d", Block(96, (128, 192), (160, 192), 128)),
    ("4e", Block(None, (128, 192), (192, 256), None)),
    ("5a", Block(352, (192, 320), (160, 224), 128)),
    ("5b", Block(352, (192, 320), (192, 224), 128, "max")),
)
# Of the small one: channels of the 1 by 1 and the 3 by 3 branch, or of the 3 by 3 branch where the image is halved.
_SMALL = (
    ("3a", (32, 32)), ("3b", (32, 48)), ("3c", (80,)), ("4a", (112, 48)), ("4b", (96, 64)), ("4c", (80, 80)),
    ("4d", (48, 96)), ("4e", (96,)), ("5a", (176, 160)), ("5b", (176, 160)),
)  # fmt: skip


def inception_bn(data: mx.sym.Symbol, *, small: bool) -> mx.sym.Symbol:
    """The network up to its last pooling; small: for images like CIFAR's."""
    if small:
        data = layers.conv_bn(data, "stem", 96, 3, pad=1)
        for name, channels in _SMALL:
            data = _small_block(data, name, *channels)
        return layers.whole_average(data, "pool")
    data = layers.conv_bn(data, "stem1", 64, 7, stride=2, pad=3)
    data = layers.max_pool(data, "pool1", 3, stride=2, pad=1)
    data = layers.conv_bn(data, "stem2", 64, 1)
    data = layers.conv_bn(data, "stem3", 192, 3, pad=1)
    data = layers.max_pool(data, "pool2", 3, stride=2, pad=1)
    for name, block in _BLOCKS:
        data = _block(data, f"block{name}", block)
    return layers.whole_average(data, "pool")


def _block(data: mx.sym.Symbol, name: str, block: Block) -> mx.sym.Symbol:
    stride = 2 if block.one is None else 1
    branches = []
    if block.one is not None:
        branches.append(layers.conv_bn(data, f"{name}_one", block.one, 1))
    three = layers.conv_bn(data, f"{name}_three_before", block.three[0], 1)
    branches.append(layers.conv_bn(three, f"{name}_three", block.three[1], 3, stride=stride, pad=1))
    double = layers.conv_bn(data, f"{name}_double_before", block.double[0], 1)
    double = layers.conv_bn(double, f"{name}_double1", block.double[1], 3, pad=1)
    branches.append(layers.conv_bn(double, f"{name}_double2", block.double[1], 3, stride=stride, pad=1))
    if block.pool is None:
        branches.append(layers.max_pool(data, f"{name}_pool", 3, stride=2, pad=1))
    else:
        pool = layers.max_pool if block.pool_kind == "max" else layers.average_pool
        branches.append(layers.conv_bn(pool(data, f"{name}_pool", 3, stride=1, pad=1), f"{name}_proj", block.pool, 1))
    return mx.sym.Concat(*branches, name=f"{name}_concat")


def _small_block(data: mx.sym.Symbol, name: str, first: int, second: Optional[int] = None) -> mx.sym.Symbol:
    if second is None:
        branches = [
            layers.conv_bn(data, f"block{name}_three", first, 3, stride=2, pad=1),
            layers.max_pool(data, f"block{name}_pool", 3, stride=2, pad=1),
        ]
    else:
        branches = [
            layers.conv_bn(data, f"block{name}_one", first, 1),
            layers.conv_bn(data, f"block{name}_three", second, 3, pad=1),
        ]
    return mx.sym.Concat(*branches, name=f"block{name}_concat")
