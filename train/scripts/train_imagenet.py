"""Train a network on ImageNet, or on other large images, on one machine or, distributed, on many.

Data is RecordIO files of encoded images (--data-train, --data-val).
"""

from common import script
from common.options import Defaults, Images

IMAGES = Images(
    shape=(3, 224, 224),
    pad_size=0,
    rgb_mean=(123.68, 116.779, 103.939),
    rgb_std=(58.393, 57.12, 57.375),
    distort={
        "random-resized-crop": True,
        "random-mirror": True,
        "min-random-area": 0.08,
        "min-random-aspect-ratio": 3 / 4,
        "max-random-aspect-ratio": 4 / 3,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "pca-noise": 0.1,
    },
)
DEFAULTS = Defaults(
    network="resnet",
    batch_size=128,
    num_epochs=80,
    lr=0.1,
    wd=0.0001,
    num_classes=1000,
    warmup_epochs=5,
    lr_step_epochs=(30, 60),
    num_examples=1281167,
    images=IMAGES,
)

if __name__ == "__main__":
    script.run(__doc__, DEFAULTS)
