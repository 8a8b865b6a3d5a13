"""From a network's name to the symbol that MXNet trains: input, network, softmax."""

import argparse
from typing import Callable, Optional, Tuple

import mxnet as mx
from mxnet.gluon import HybridBlock, nn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, BasicBlockV2, BottleneckV2, ResNetV1, ResNetV2

from networks import blocks
from networks.names import SMALL, pick_depth

_UNITS = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3),
    200: (3, 24, 36, 3), 269: (3, 30, 48, 8),
}  # fmt: skip
_BASIC = (18, 34)  # the deeper ones have bottlenecks


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
    size = min(image_shape[1:])
    # Names are counted from zero here, so that a network's parameters are called the same in every process.
    with mx.name.NameManager():
        block = _block(network, pick_depth(network, num_layers, size), num_classes, small=size <= SMALL)
        for name, parameter in block.collect_params().items():
            if name.endswith("weight"):
                parameter.init = None  # --initializer decides, also where the zoo has a choice of its own
        if dtype == "float16":
            block.cast("float16")
            data = block(mx.sym.Cast(data, dtype="float16", name="half"))
            data = mx.sym.Cast(data, dtype="float32", name="single")
        else:
            data = block(data)
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


def _block(network: str, depth: int, classes: int, *, small: bool) -> HybridBlock:
    if network in ("resnet", "resnet-v2", "resnext"):
        return _residual(network, depth, classes, small=small)
    if network == "inception-bn":
        return blocks.inception_bn(classes, small=small)
    if network == "inception-v3":
        return _inception_v3(classes)
    if network == "vgg":
        return vision.get_vgg(depth, classes=classes)
    makers = {"mlp": blocks.mlp, "lenet": blocks.lenet, "alexnet": vision.alexnet, "mobilenet": vision.mobilenet1_0}
    return makers[network](classes=classes)


def _residual(network: str, depth: int, classes: int, *, small: bool) -> HybridBlock:
    """Residual networks; small: of three stages, with 6 n + 2 or, ResNeXt, 9 n + 2 layers (He et al., 2015)."""
    if network == "resnext":
        units = [(depth - 2) // 9] * 3 if small else _UNITS[depth]
        channels = [64, 256, 512, 1024, 2048]
        return ResNetV1(blocks.ResNeXtBottleneck, units, channels[: len(units) + 1], classes, thumbnail=small)
    net, basic, bottleneck = (
        (ResNetV1, BasicBlockV1, blocks.Bottleneck) if network == "resnet" else (ResNetV2, BasicBlockV2, BottleneckV2)
    )
    if small:
        return net(basic, [(depth - 2) // 6] * 3, [16, 16, 32, 64], classes, thumbnail=True)
    if depth in _BASIC:
        return net(basic, _UNITS[depth], [64, 64, 128, 256, 512], classes)
    return net(bottleneck, _UNITS[depth], [64, 256, 512, 1024, 2048], classes)


def _inception_v3(classes: int) -> HybridBlock:
    """The zoo's, whose last pooling is made for images of 299 pixels, with one that takes any."""
    net = vision.inception_v3(classes=classes)
    net.features = net.features[:-2]
    net.features.add(nn.GlobalAvgPool2D(), nn.Dropout(0.5))
    return net
