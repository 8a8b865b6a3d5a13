"""The options that say what images look like and how they are distorted, in MXNet's users' words."""

import argparse
from typing import Dict, NamedTuple, Tuple, Union

from common.values import at_least, colours, image_shape, not_negative, positive, switch


class Images(NamedTuple):
    """What a script's images are like. distort: what is not at its neutral default, by option."""

    shape: Tuple[int, int, int]
    pad_size: int
    rgb_mean: Tuple[float, float, float]
    rgb_std: Tuple[float, float, float]
    distort: Dict[str, Union[bool, float]]


# Option -> its type, neutral default, ImageRecordIter's name for it, what it does.
_DISTORTIONS = (
    ("random-crop", switch, False, "rand_crop", "cut out at a random place instead of the middle"),
    ("random-mirror", switch, False, "rand_mirror", "mirror every other image"),
    ("random-resized-crop", switch, False, "random_resized_crop", "cut out at a random place, size and shape"),
    ("max-random-h", at_least(0), 0, "random_h", "change of hue, at most, 0 to 180"),
    ("max-random-s", at_least(0), 0, "random_s", "change of saturation, at most, 0 to 255"),
    ("max-random-l", at_least(0), 0, "random_l", "change of lightness, at most, 0 to 255"),
    ("max-random-aspect-ratio", not_negative, 0.0, "max_aspect_ratio", "change of shape, at most"),
    ("min-random-aspect-ratio", positive, None, "min_aspect_ratio", "the least shape of a resized crop"),
    ("max-random-rotate-angle", at_least(0), 0, "max_rotate_angle", "degrees"),
    ("max-random-shear-ratio", not_negative, 0.0, "max_shear_ratio", "shear, at most"),
    ("max-random-scale", positive, 1.0, "max_random_scale", "the most that an image is enlarged"),
    ("min-random-scale", positive, 1.0, "min_random_scale", "the least; images must stay larger than --image-shape"),
    ("max-random-area", positive, 1.0, "max_random_area", "the largest part of an image in a resized crop"),
    ("min-random-area", positive, 1.0, "min_random_area", "the smallest"),
    ("brightness", not_negative, 0.0, "brightness", "random change of brightness, at most"),
    ("contrast", not_negative, 0.0, "contrast", "of contrast"),
    ("saturation", not_negative, 0.0, "saturation", "of saturation"),
    ("pca-noise", not_negative, 0.0, "pca_noise", "noise along the colours' main directions"),
)


def add(parser: argparse.ArgumentParser, images: Images) -> None:
    """Add the options, with the script's own defaults."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--image-shape", type=image_shape, default=images.shape, metavar="C,H,W",
        help="channels, rows, columns that the network sees; " + ",".join(map(str, images.shape)),
    )  # fmt: skip
    for name, text, default in (
        ("rgb-mean", "what is taken off each colour, of 0 to 255", images.rgb_mean),
        ("rgb-std", "what it is then divided by", images.rgb_std),
    ):
        group.add_argument(
            f"--{name}", type=colours, default=default, metavar="R,G,B",
            help=f"{text}; {','.join('%g' % value for value in default)}",
        )  # fmt: skip
    group.add_argument("--pad-size", type=at_least(0), default=images.pad_size, metavar="N", help="border put around")
    group.add_argument("--fill-value", type=at_least(0), default=127, metavar="N", help="the border's colour, to 255")
    distort = parser.add_argument_group("distortion of training images")
    for name, kind, neutral, _, text in _DISTORTIONS:
        extra = {"nargs": "?", "const": True, "metavar": "0|1"} if kind is switch else {"metavar": "X"}
        distort.add_argument(f"--{name}", type=kind, default=images.distort.get(name, neutral), help=text, **extra)


def reader_settings(options: argparse.Namespace) -> Dict[str, object]:
    """What ImageRecordIter is told about all images."""
    settings: Dict[str, object] = {"data_shape": options.image_shape, "pad": options.pad_size}
    settings["fill_value"] = options.fill_value
    for kind, values in (("mean", options.rgb_mean), ("std", options.rgb_std)):
        settings.update({f"{kind}_{colour}": value for colour, value in zip("rgb", values)})  # noqa: B905 - 3.6
    return settings


def distortions(options: argparse.Namespace) -> Dict[str, object]:
    """What ImageRecordIter is told about training images beside that: only what is not neutral."""
    chosen = ((their, getattr(options, name.replace("-", "_")), neutral) for name, _, neutral, their, _ in _DISTORTIONS)
    return {their: value for their, value, neutral in chosen if value != neutral}
