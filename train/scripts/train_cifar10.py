"""Train a network on CIFAR-10, or on other small images, on one machine or, distributed, on many.

Data is RecordIO files of encoded images (--data-train, --data-val).
"""

from common import script
from common.options import Defaults, Images

IMAGES = Images(
    shape=(3, 28, 28),
    pad_size=4,
    rgb_mean=(123.68, 116.779, 103.939),
    rgb_std=(1.0, 1.0, 1.0),
    distort={"random-crop": True, "random-mirror": True, "max-random-h": 36, "max-random-s": 50, "max-random-l": 50},
)
DEFAULTS = Defaults(
    network="resnet",
    batch_size=128,
    num_epochs=300,
    lr=0.05,
    wd=0.0001,
    num_classes=10,
    lr_step_epochs=(200, 250),
    num_examples=50000,
    images=IMAGES,
)

if __name__ == "__main__":
    script.run(__doc__, DEFAULTS)
