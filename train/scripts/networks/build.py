"""From a network's name to the symbol that MXNet trains: input, network, output, softmax."""

import argparse
from typing import Callable, Optional, Tuple

import mxnet as mx

from networks import layers
from networks.alexnet import alexnet
from networks.inception_bn import inception_bn
from networks.inception_v3 import inception_v3
from networks.mobilenet import mobilenet
from networks.names import SMALL, pick_depth
from networks.resnet import resnet, resnet_v2, resnext
from networks.simple import lenet, mlp
from networks.vgg import vgg

_PLAIN = {"mlp": mlp, "lenet": lenet, "alexnet": alexnet, "inception-v3": inception_v3, "mobilenet": mobilenet}
_RESIDUAL = {"resnet": resnet, "resnet-v2": resnet_v2, "resnext": resnext}


def build(
    network: str,
    num_layers: Optional[int],
    num_classes: int,
    image_shape: Tuple[int, int, int],
    *,
    dtype: str = "float32",
    prepare: Optional[Callable[[mx.sym.Symbol], mx.sym.Symbol]] = None,
) -> mx.sym.Symbol:
    """The symbol for images of (channels, rows, columns), ending in a softmax over `num_classes`.

    dtype: float16 computes in half precision between input and output; the softmax is float32 always.
    prepare: what is done to the pixels first, so that a saved model has it too. What `networks.names` finds a
    problem with cannot be built.
    """
    data = mx.sym.Variable("data")
    if prepare is not None:
        data = prepare(data)
    if dtype == "float16":
        data = mx.sym.Cast(data, dtype="float16", name="half")
    size = min(image_shape[1:])
    data = _body(data, network, pick_depth(network, num_layers, size), small=size <= SMALL)
    data = layers.dense(data, "output", num_classes)
    if dtype == "float16":
        data = mx.sym.Cast(data, dtype="float32", name="single")
    return mx.sym.SoftmaxOutput(data, name="softmax")


def for_options(
    options: argparse.Namespace, prepare: Optional[Callable[[mx.sym.Symbol], mx.sym.Symbol]] = None
) -> mx.sym.Symbol:
    """The network that a script's options ask for."""
    return build(
        options.network,
        options.num_layers,
        options.num_classes,
        options.image_shape,
        dtype=options.dtype,
        prepare=prepare,
    )


def _body(data: mx.sym.Symbol, network: str, depth: int, *, small: bool) -> mx.sym.Symbol:
    if network in _PLAIN:
        return _PLAIN[network](data)
    if network in _RESIDUAL:
        return _RESIDUAL[network](data, depth, small=small)
    if network == "vgg":
        return vgg(data, depth)
    return inception_bn(data, small=small)
