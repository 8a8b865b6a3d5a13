"""Train a multi-layer perceptron or LeNet on handwritten digits, on one machine or, distributed, on many.

Data is MNIST's four idx-ubyte files (--data-dir) or RecordIO files of 28 by 28 images (--data-train,
--data-val).
"""

from typing import Any

from common import script
from common.options import DISTORTION, IMAGES

_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training images, whose pixels come as 0 to 1


def prepare(pixels: Any) -> Any:
    """Scales pixels to about mean 0 and deviation 1, as part of the network, so that a saved model includes it."""
    return (pixels - _MEAN) / _DEVIATION


if __name__ == "__main__":
    script.run(__doc__, ("mlp", "lenet"), without=(IMAGES, DISTORTION), prepare=prepare)
