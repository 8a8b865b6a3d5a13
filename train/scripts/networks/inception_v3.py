"""Inception v3 (Szegedy et al., 2015) without the auxiliary classifier. Made for images of 299 by 299 pixels."""

from typing import Sequence, Tuple

import mxnet as mx

from networks import layers
from networks.layers import Size

_EPSILON = 1e-3
Step = Tuple[int, Size]  # filters, kernel


def inception_v3(data: mx.sym.Symbol) -> mx.sym.Symbol:
    """The network up to its dropout."""
    data = _conv(data, "stem1", 32, 3, stride=2)
    data = _conv(data, "stem2", 32, 3)
    data = _conv(data, "stem3", 64, 3, pad=1)
    data = layers.max_pool(data, "pool1", 3, stride=2)
    data = _conv(data, "stem4", 80, 1)
    data = _conv(data, "stem5", 192, 3)
    data = layers.max_pool(data, "pool2", 3, stride=2)
    for number, projected in enumerate((32, 64, 64), start=1):
        data = _square(data, f"a{number}", projected)
    data = _halve_once(data, "b")
    for number, inner in enumerate((128, 160, 160, 192), start=1):
        data = _stretched(data, f"c{number}", inner)
    data = _halve_twice(data, "d")
    for number in (1, 2):
        data = _spread(data, f"e{number}")
    return mx.sym.Dropout(layers.whole_average(data, "pool"), p=0.5, name="drop")


def _conv(
    data: mx.sym.Symbol, name: str, filters: int, kernel: Size, *, stride: int = 1, pad: Size = 0
) -> mx.sym.Symbol:
    return layers.conv_bn(data, name, filters, kernel, stride=stride, pad=pad, epsilon=_EPSILON)


def _chain(data: mx.sym.Symbol, name: str, steps: Sequence[Step]) -> mx.sym.Symbol:
    """Convolutions one after the other that leave the image as large as it is."""
    for number, (filters, kernel) in enumerate(steps, start=1):
        pad = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        data = _conv(data, f"{name}_{number}", filters, kernel, pad=pad)
    return data


def _pooled(data: mx.sym.Symbol, name: str, filters: int) -> mx.sym.Symbol:
    return _conv(layers.average_pool(data, f"{name}_avg", 3, stride=1, pad=1), name, filters, 1)


def _square(data: mx.sym.Symbol, name: str, projected: int) -> mx.sym.Symbol:
    branches = [
        _chain(data, f"{name}_one", [(64, 1)]),
        _chain(data, f"{name}_five", [(48, 1), (64, 5)]),
        _chain(data, f"{name}_three", [(64, 1), (96, 3), (96, 3)]),
        _pooled(data, f"{name}_pool", projected),
    ]
    return mx.sym.Concat(*branches, name=f"{name}_concat")


def _halve_once(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    double = _chain(data, f"{name}_double", [(64, 1), (96, 3)])
    branches = [
        _conv(data, f"{name}_three", 384, 3, stride=2),
        _conv(double, f"{name}_double_last", 96, 3, stride=2),
        layers.max_pool(data, f"{name}_pool", 3, stride=2),
    ]
    return mx.sym.Concat(*branches, name=f"{name}_concat")


def _stretched(data: mx.sym.Symbol, name: str, inner: int) -> mx.sym.Symbol:
    row, column = (1, 7), (7, 1)
    branches = [
        _chain(data, f"{name}_one", [(192, 1)]),
        _chain(data, f"{name}_seven", [(inner, 1), (inner, row), (192, column)]),
        _chain(data, f"{name}_twice", [(inner, 1), (inner, column), (inner, row), (inner, column), (192, row)]),
        _pooled(data, f"{name}_pool", 192),
    ]
    return mx.sym.Concat(*branches, name=f"{name}_concat")


def _halve_twice(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    three = _chain(data, f"{name}_three", [(192, 1)])
    seven = _chain(data, f"{name}_seven", [(192, 1), (192, (1, 7)), (192, (7, 1))])
    branches = [
        _conv(three, f"{name}_three_last", 320, 3, stride=2),
        _conv(seven, f"{name}_seven_last", 192, 3, stride=2),
        layers.max_pool(data, f"{name}_pool", 3, stride=2),
    ]
    return mx.sym.Concat(*branches, name=f"{name}_concat")


def _spread(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    three = _chain(data, f"{name}_three", [(384, 1)])
    double = _chain(data, f"{name}_double", [(448, 1), (384, 3)])
    branches = [_chain(data, f"{name}_one", [(320, 1)])]
    for part, inner in (("three", three), ("double", double)):
        branches.append(_chain(inner, f"{name}_{part}_row", [(384, (1, 3))]))
        branches.append(_chain(inner, f"{name}_{part}_column", [(384, (3, 1))]))
    branches.append(_pooled(data, f"{name}_pool", 192))
    return mx.sym.Concat(*branches, name=f"{name}_concat")
