"""Train a network on ImageNet, or on other large images, on one machine or, distributed, on many.

Data is RecordIO files of encoded images (--data-train, --data-val).
"""

from common import script

if __name__ == "__main__":
    script.run(
        __doc__,
        without=("data-dir",),
        network="resnet",
        batch_size=128,
        num_epochs=80,
        lr=0.1,
        lr_step_epochs=(30, 60),
        warmup_epochs=5,
        num_classes=1000,
        num_examples=1281167,
        data_nthreads=4,
        image_shape=(3, 224, 224),
        rgb_mean=(123.68, 116.779, 103.939),
        rgb_std=(58.393, 57.12, 57.375),
        random_resized_crop=True,
        random_mirror=True,
        min_random_area=0.08,
        min_random_aspect_ratio=3 / 4,
        max_random_aspect_ratio=4 / 3,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        pca_noise=0.1,
    )
