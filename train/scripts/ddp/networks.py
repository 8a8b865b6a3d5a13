"""The networks for images of 28 by 28 pixels, by name. The same layers as the MXNet scripts' networks."""

import torch
from torch import nn

_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training images, whose pixels are scaled to 0 to 1


class Normalize(nn.Module):
    """Scales pixels to about mean 0 and deviation 1. Part of the network, so that a saved model includes it."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scales the pixels, which are bytes."""
        return (pixels.float() / 255 - _MEAN) / _DEVIATION


def build(network: str, classes: int) -> nn.Module:
    """The network for images of (1, 28, 28) bytes."""
    layers = {"mlp": mlp, "lenet": lenet}[network](classes)
    return nn.Sequential(Normalize(), *layers)


def mlp(classes: int) -> nn.Sequential:
    """A multi-layer perceptron: two hidden layers of 256 and 128 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, classes)
    )


def lenet(classes: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998) with rectified units and max pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(50 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, classes),
    )  # fmt: skip
