"""Builds the symbol that MXNet trains, from the network's name: input, network, softmax. Runs on the nodes.

`common.network_names` lists the networks without importing MXNet.
"""

from typing import Callable, List, Optional, Tuple

import mxnet as mx
from common.network_names import SMALL, pick_depth
from mxnet.gluon import HybridBlock, nn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.resnet import (
    BasicBlockV1,
    BasicBlockV2,
    BottleneckV1,
    BottleneckV2,
    ResNetV1,
    ResNetV2,
)

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

    dtype: float16 computes in half precision between input and output; the softmax is always float32. prepare: applied
    to the pixels first, as part of the network, so that a saved model includes it. The arguments must pass
    `common.network_names.find_problem`.
    """
    data = mx.sym.Variable("data")
    if prepare is not None:
        data = prepare(data)
    size = min(image_shape[1:])
    # Numbers in names start from zero here, so that a network's parameters have the same names in every process.
    with mx.name.NameManager():
        block = _block(network, pick_depth(network, num_layers, size), num_classes, small=size <= SMALL)
        for name, parameter in block.collect_params().items():
            if name.endswith("weight"):
                parameter.init = None  # --initializer decides, even if the zoo has its own choice
        if dtype == "float16":
            block.cast("float16")
            data = block(mx.sym.Cast(data, dtype="float16", name="half"))
            data = mx.sym.Cast(data, dtype="float32", name="single")
        else:
            data = block(data)
    return mx.sym.SoftmaxOutput(data, name="softmax")


def _block(network: str, depth: int, classes: int, *, small: bool) -> HybridBlock:
    if network in ("resnet", "resnet-v2"):
        return _residual(network, depth, classes, small=small)
    if network == "inception-v3":
        return _inception_v3(classes)
    if network == "vgg":
        return vision.get_vgg(depth, classes=classes)
    makers = {"mlp": mlp, "lenet": lenet, "alexnet": vision.alexnet, "mobilenet": vision.mobilenet1_0}
    return makers[network](classes=classes)


def _residual(network: str, depth: int, classes: int, *, small: bool) -> HybridBlock:
    """A residual network. small: three stages with 6 n + 2 layers (He et al., 2015)."""
    net, basic, bottleneck = (
        (ResNetV1, BasicBlockV1, BottleneckV1) if network == "resnet" else (ResNetV2, BasicBlockV2, BottleneckV2)
    )
    if small:
        return net(basic, [(depth - 2) // 6] * 3, [16, 16, 32, 64], classes, thumbnail=True)
    if depth in _BASIC:
        return net(basic, _UNITS[depth], [64, 64, 128, 256, 512], classes)
    return net(bottleneck, _UNITS[depth], [64, 256, 512, 1024, 2048], classes)


def _inception_v3(classes: int) -> HybridBlock:
    """The zoo's network, but with a last pooling layer for any size, not only for images of 299 pixels."""
    net = vision.inception_v3(classes=classes)
    net.features = net.features[:-2]
    net.features.add(nn.GlobalAvgPool2D(), nn.Dropout(0.5))
    return net


def mlp(classes: int) -> HybridBlock:
    """A multi-layer perceptron: two hidden layers of 256 and 128 units."""
    return _sequence(nn.Dense(256, activation="relu"), nn.Dense(128, activation="relu"), nn.Dense(classes))


def lenet(classes: int) -> HybridBlock:
    """LeNet-5 (LeCun et al., 1998) with rectified units and max pooling."""
    layers: List[HybridBlock] = []
    for channels in (20, 50):
        layers += [nn.Conv2D(channels, 5, activation="relu"), nn.MaxPool2D(2, 2)]
    return _sequence(*layers, nn.Dense(256, activation="relu"), nn.Dense(classes))


def _sequence(*layers: HybridBlock) -> HybridBlock:
    made = nn.HybridSequential(prefix="")
    made.add(*layers)
    return made
