"""The networks by name: depths and minimum image sizes. Does not import MXNet."""

from typing import NamedTuple, Optional, Sequence

SMALL = 32  # pixels: up to this size, a network is built as its authors built it for CIFAR, if they did


class Choice(NamedTuple):
    """A network of --network.

    depths, small_depths: the allowed --num-layers, the default first, for large and for small images; empty: the
    network has one depth, and --num-layers has no effect. least: rows and columns of the smallest image.
    """

    depths: Sequence[int]
    small_depths: Sequence[int]
    least: int

    def depths_for(self, image_size: int) -> Sequence[int]:
        """The depths for images whose shorter edge has this many pixels."""
        return self.small_depths if image_size <= SMALL else self.depths


_RESNET = (50, 18, 34, 101, 152, 200, 269)
# He et al., 2015: 6 n + 2 layers; 110 is the best known.
_RESNET_SMALL = (110, *range(8, 110, 6), *range(116, 1203, 6))
_VGG = (16, 11, 13, 19)

BY_NAME = {
    "mlp": Choice((), (), 1),
    "lenet": Choice((), (), 16),
    "resnet": Choice(_RESNET, _RESNET_SMALL, 8),
    "resnet-v2": Choice(_RESNET, _RESNET_SMALL, 8),
    "vgg": Choice(_VGG, _VGG, 32),
    "alexnet": Choice((), (), 63),
    "inception-v3": Choice((), (), 75),
    "mobilenet": Choice((), (), 8),
}


def find_problem(network: str, num_layers: Optional[int], image_size: int) -> Optional[str]:
    """Why this network cannot be built for images of this size, or None if it can."""
    choice = BY_NAME[network]
    if image_size < choice.least:
        return f"--network {network} needs images of at least {choice.least} by {choice.least} pixels (--image-shape)"
    depths = choice.depths_for(image_size)
    if num_layers is None or not depths or num_layers in depths:
        return None
    some = ", ".join(map(str, sorted(depths)[:8])) + (" ..." if len(depths) > 8 else "")
    return f"--num-layers {num_layers}: --network {network} for images of {image_size} pixels has {some} layers"


def pick_depth(network: str, num_layers: Optional[int], image_size: int) -> int:
    """The given --num-layers, or the network's default; 0 if it has only one depth."""
    depths = BY_NAME[network].depths_for(image_size)
    if not depths:
        return 0
    return depths[0] if num_layers is None else num_layers
