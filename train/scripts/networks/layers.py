"""Layers that most of the networks are made of."""

from typing import Tuple, Union

import mxnet as mx

Size = Union[int, Tuple[int, int]]  # one number: the same for rows and columns
BN_EPSILON = 2e-5  # above the least that cuDNN takes, 1e-5


def conv(
    data: mx.sym.Symbol, name: str, filters: int, kernel: Size, *, stride: int = 1, pad: Size = 0, groups: int = 1,
    bias: bool = False,
) -> mx.sym.Symbol:  # fmt: skip
    """A convolution."""
    return mx.sym.Convolution(
        data, num_filter=filters, kernel=_pair(kernel), stride=_pair(stride), pad=_pair(pad), num_group=groups,
        no_bias=not bias, name=name,
    )  # fmt: skip


def batch_norm(data: mx.sym.Symbol, name: str, epsilon: float = BN_EPSILON) -> mx.sym.Symbol:
    """Batch normalization with scale and shift."""
    return mx.sym.BatchNorm(data, fix_gamma=False, eps=epsilon, momentum=0.9, name=name)


def relu(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    """Rectified units."""
    return mx.sym.Activation(data, act_type="relu", name=name)


def conv_bn(
    data: mx.sym.Symbol, name: str, filters: int, kernel: Size, *, stride: int = 1, pad: Size = 0, groups: int = 1,
    epsilon: float = BN_EPSILON, rectified: bool = True,
) -> mx.sym.Symbol:  # fmt: skip
    """A convolution without bias, normalized, and rectified where nothing else is said."""
    data = conv(data, f"{name}_conv", filters, kernel, stride=stride, pad=pad, groups=groups)
    data = batch_norm(data, f"{name}_bn", epsilon)
    return relu(data, f"{name}_relu") if rectified else data


def max_pool(
    data: mx.sym.Symbol, name: str, kernel: int, *, stride: int, pad: int = 0, full: bool = False
) -> mx.sym.Symbol:
    """Max pooling; full: the last, incomplete window counts too."""
    return _pool(data, name, "max", kernel, stride=stride, pad=pad, full=full)


def average_pool(data: mx.sym.Symbol, name: str, kernel: int, *, stride: int, pad: int = 0) -> mx.sym.Symbol:
    """Average pooling, zeros at the border counted."""
    return _pool(data, name, "avg", kernel, stride=stride, pad=pad, full=False)


def whole_average(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    """The average over all rows and columns, flattened to (batch, channels)."""
    data = mx.sym.Pooling(data, global_pool=True, kernel=(1, 1), pool_type="avg", name=name)
    return mx.sym.Flatten(data, name=f"{name}_flat")


def dense(data: mx.sym.Symbol, name: str, units: int) -> mx.sym.Symbol:
    """A fully connected layer."""
    return mx.sym.FullyConnected(data, num_hidden=units, name=name)


def _pool(
    data: mx.sym.Symbol, name: str, kind: str, kernel: int, *, stride: int, pad: int, full: bool
) -> mx.sym.Symbol:
    return mx.sym.Pooling(
        data, kernel=_pair(kernel), stride=_pair(stride), pad=_pair(pad), pool_type=kind,
        pooling_convention="full" if full else "valid", name=name,
    )  # fmt: skip


def _pair(size: Size) -> Tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
