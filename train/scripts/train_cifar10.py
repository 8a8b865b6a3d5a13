"""Train a network on CIFAR-10, or on other small images, on one machine or, distributed, on many.

Data is RecordIO files of encoded images (--data-train, --data-val).
"""

from common import script

if __name__ == "__main__":
    script.run(
        __doc__,
        without=("data-dir",),
        network="resnet",
        batch_size=128,
        num_epochs=300,
        lr_step_epochs=(200, 250),
        num_examples=50000,
        data_nthreads=4,
        image_shape=(3, 28, 28),
        pad_size=4,
        rgb_mean=(123.68, 116.779, 103.939),
        rgb_std=(1.0, 1.0, 1.0),
        random_crop=True,
        random_mirror=True,
        max_random_h=36,
        max_random_s=50,
        max_random_l=50,
    )
