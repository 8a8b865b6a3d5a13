"""MobileNet (Howard et al., 2017), at its full width."""

import mxnet as mx

from networks import layers

# Filters and stride of each pair of a depthwise and a pointwise convolution.
_PAIRS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip


def mobilenet(data: mx.sym.Symbol) -> mx.sym.Symbol:
    """Convolutions of each channel alone, each followed by one of 1 by 1 pixels over all channels."""
    channels = 32
    data = layers.conv_bn(data, "stem", channels, 3, stride=2, pad=1)
    for number, (filters, stride) in enumerate(_PAIRS, start=1):
        data = layers.conv_bn(data, f"pair{number}_depth", channels, 3, stride=stride, pad=1, groups=channels)
        data = layers.conv_bn(data, f"pair{number}_point", filters, 1)
        channels = filters
    return layers.whole_average(data, "pool")
