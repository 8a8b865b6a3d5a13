"""The options of the training scripts, with the names of MXNet's own examples. Does not import MXNet.

This module and `checks` reject invalid options with exit code 2 in every process of the job: servers and the scheduler
run the same command, and importing MXNet would already make them wait for the workers.
"""

import argparse
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from common import checks

KV_STORES = ("local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device")
OPTIMIZERS = (
    "sgd", "nag", "signum", "dcasgd", "adam", "adamax", "nadam", "adagrad", "adadelta", "rmsprop", "ftml",
    "ftrl",
)  # fmt: skip
INITIALIZERS = ("default", "xavier", "msra", "orthogonal", "normal", "uniform", "one", "zero")
WARMUPS = ("linear", "power2", "sqrt")
_WITH_MOMENTUM = ("sgd", "nag", "signum", "dcasgd")
DATA_URL = "CLUSTER_DATA_URL"  # set by `cluster train` from cluster.toml's [data] url
OUTPUT_URL, OUTPUT_DIR = "CLUSTER_OUTPUT_URL", "CLUSTER_OUTPUT_DIR"  # set by `cluster train` for each job
RESUME, JOB_ID = "CLUSTER_RESUME", "CLUSTER_JOB_ID"
AUTO = "auto"


class Images(NamedTuple):
    """A script's images. distort: the options that differ from their neutral defaults."""

    shape: Tuple[int, int, int]
    pad_size: int
    rgb_mean: Tuple[float, float, float]
    rgb_std: Tuple[float, float, float]
    distort: Dict[str, Union[bool, float]]


class Defaults(NamedTuple):
    """The differences between the scripts. images: None for MNIST: one shape, no distortion."""

    network: str
    batch_size: int
    num_epochs: int
    lr: float
    wd: float
    num_classes: int
    warmup_epochs: int = 1
    lr_step_epochs: Optional[Tuple[int, ...]] = None  # None: after a half and three quarters of the epochs
    num_examples: Optional[int] = None  # None: counted
    images: Optional[Images] = None


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default only if there is one."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        if action.default is True:
            return f"{action.help} (default: 1)"
        shown = action.default and not isinstance(action.default, (list, tuple))
        return super()._get_help_string(action) if shown else action.help


def make_parser(description: str, networks: Sequence[str], defaults: Defaults) -> argparse.ArgumentParser:
    """The parser with every group of options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=Formatter, allow_abbrev=False)
    _add_network(parser, networks, defaults)
    _add_data(parser, defaults)
    if defaults.images is not None:
        _add_images(parser, defaults.images)
    _add_training(parser, defaults)
    add_rate(parser, defaults)
    _add_reports(parser)
    add_model(parser)
    _add_cluster(parser)
    parser.set_defaults(usual=defaults)
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """The options, checked against each other; exits with code 2 and a message if they are invalid."""
    options = parser.parse_args(arguments)
    usual = options.usual
    del options.usual
    _fill_in(options, usual, environment)
    for problem in checks.find_problems(options, environment):
        parser.error(problem)
    return options


def has_momentum(optimizer: str) -> bool:
    """Whether the optimizer takes --mom."""
    return optimizer in _WITH_MOMENTUM


def _fill_in(options: argparse.Namespace, usual: Defaults, environment: Mapping[str, str]) -> None:
    """Sets the options that the user left out and whose default depends on something else."""
    if options.kv_store is None:
        options.kv_store = "dist_sync" if "DMLC_ROLE" in environment else "local"
    if options.num_epochs is None:
        options.num_epochs = 1 if options.benchmark else usual.num_epochs
    if usual.images is None:
        options.image_shape = (1, 28, 28)
    _fill_in_data(options, usual, environment)
    fill_in_rate_and_model(options, usual, environment)


def fill_in_rate_and_model(options: argparse.Namespace, usual: Defaults, environment: Mapping[str, str]) -> None:
    """Sets the options that `add_rate` and `add_model` leave open. Adds auto_prefix: whether --model-prefix was auto.

    A later attempt of a job resumes, if it can.
    """
    if options.lr_step_epochs is None and usual.lr_step_epochs is not None:
        options.lr_step_epochs = list(usual.lr_step_epochs)
    elif options.lr_step_epochs is None:
        options.lr_step_epochs = sorted({options.num_epochs // 2, options.num_epochs * 3 // 4} - {0})
    options.auto_prefix = options.model_prefix == AUTO
    if options.auto_prefix:
        url = environment.get(OUTPUT_URL)
        folder = environment.get(OUTPUT_DIR)
        if url or folder:
            options.model_prefix = f"{url.rstrip('/')}/model" if url else os.path.join(str(folder), "model")
    options.only_job = None  # the job whose checkpoints --resume looks for; None: all jobs
    is_restarted = environment.get(RESUME) == "1" and bool(options.model_prefix)
    if is_restarted and not options.resume and checks.can_resume(options, environment):
        # A later attempt. Its place may have checkpoints of earlier jobs, from which it must not continue.
        options.resume, options.only_job = True, environment.get(JOB_ID)


def _fill_in_data(options: argparse.Namespace, usual: Defaults, environment: Mapping[str, str]) -> None:
    if options.benchmark:
        return
    if options.num_examples is None:
        options.num_examples = usual.num_examples
    url = environment.get(DATA_URL)
    if not url or options.data_dir or options.data_train:
        return
    if usual.images is None:
        if not options.data_val:
            options.data_dir = url
        return
    options.data_train = url.rstrip("/") + "/train/"
    if options.data_val is None:
        options.data_val = url.rstrip("/") + "/val/"


def _add_network(parser: argparse.ArgumentParser, networks: Sequence[str], defaults: Defaults) -> None:
    add = parser.add_argument_group("network").add_argument
    add("--network", choices=networks, default=defaults.network, help="what to train")
    add_number(add, "--num-layers", 1, "depth, as in ResNet-50; by default the network's usual one")
    add_number(add, "--num-classes", 2, "number of labels", default=defaults.num_classes)
    add("--initializer", choices=INITIALIZERS, default="default", help="of the weights")
    add(
        "--dtype",
        choices=("float32", "float16"),
        default="float32",
        help="float16: half precision, weights kept in both",
    )


def _add_data(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    add = parser.add_argument_group(
        "data", "local paths, or s3:// read by MXNet itself; each worker reads its part"
    ).add_argument
    if defaults.images is None:
        add(
            "--data-dir",
            metavar="URI",
            help="folder with MNIST's four idx-ubyte files, under their own names, unzipped",
        )
    else:
        parser.set_defaults(data_dir=None)
    add("--data-train", metavar="URI", help="RecordIO: one .rec, 'a.rec;b.rec', or a folder with a trailing slash")
    add("--data-train-idx", metavar="URI", help="the .idx file of a single .rec; not needed")
    add("--data-val", metavar="URI", help="the same for validation; every worker reads all; '' for none")
    add("--data-val-idx", metavar="URI", help="its .idx file; not needed")
    usual = defaults.num_examples
    add_number(
        add,
        "--num-examples",
        0,
        "training examples in all workers' parts together; "
        + (f"{usual} where it is not given, counted if 0" if usual else "counted at the start where it is not given"),
    )
    threads = 2 if defaults.images is None else 4
    add_number(add, "--data-nthreads", 1, "threads that decode images", default=threads)
    _add_switch(add, "--test-io", "only read the training data and report the speed")
    _add_switch(add, "--benchmark", "train on random images: no data is read; one epoch of 500 batches")


def _add_training(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    add = parser.add_argument_group("training").add_argument
    add_number(add, "--batch-size", 1, "examples per worker and step", default=defaults.batch_size)
    add_number(
        add,
        "--macrobatch-size",
        0,
        "examples of all workers per update, if more than one step's: gradients are added up over several steps",
        default=0,
    )
    add_number(add, "--num-epochs", 1, f"epochs in all; {defaults.num_epochs}, or 1 with --benchmark")
    add("--optimizer", choices=OPTIMIZERS, default="sgd", help="MXNet's optimizer")
    add("--mom", type=not_negative, default=0.9, help="momentum; for " + ", ".join(_WITH_MOMENTUM))
    add("--wd", type=not_negative, default=defaults.wd, help="weight decay")
    add_number(add, "--seed", 0, "of weights and of data order", default=0)


def add_rate(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    """Adds the group of options for the learning rate."""
    add = parser.add_argument_group("learning rate").add_argument
    add("--lr", type=positive, default=defaults.lr, help="learning rate to begin with")
    add("--lr-factor", type=positive, default=0.1, help="what a step multiplies it with")
    steps = "1/2 and 3/4 of them" if defaults.lr_step_epochs is None else ",".join(map(str, defaults.lr_step_epochs))
    add(
        "--lr-step-epochs",
        type=numbers,
        metavar="N,N",
        help=f"after which epochs it steps, as in 10,15; '' for never; by default after {steps}",
    )
    add_number(
        add,
        "--warmup-epochs",
        0,
        "epochs in which it rises to --lr, from a tenth of it",
        default=defaults.warmup_epochs,
    )
    add("--warmup-strategy", choices=WARMUPS, default="linear", help="how it rises")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("reports").add_argument
    add_number(add, "--disp-batches", 1, "batches between two reports", default=20)
    add("--top-k", type=at_least(0), default=0, metavar="K", help="report top-k accuracy too; 0: no")
    add("--loss", type=losses, default=[], metavar="ce,nll", help="report these losses too")
    add_number(add, "--monitor", 0, "log norms every N batches; 0: no", default=0)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the group of options for checkpoints."""
    add = parser.add_argument_group("model").add_argument
    add(
        "--model-prefix",
        metavar="PREFIX",
        help="save checkpoints here: a local path or s3://; auto: in the job's own output folder",
    )
    add_number(add, "--save-period", 1, "epochs between two of them", default=1)
    add_number(add, "--checkpoint-batches", 1, "also save one every N batches; only the newest of these is kept")
    add("--keep-checkpoints", type=count_or_all, default=0, metavar="N", help="how many to keep; all by default")
    add("--resume", action="store_true", help="continue from the newest complete checkpoint, or begin without one")
    add_number(add, "--load-epoch", 1, "continue from the checkpoint of epoch N")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cluster").add_argument
    add("--kv-store", choices=KV_STORES, help="how workers exchange gradients; dist_sync under launch.py, else local")
    add("--gpus", type=numbers, default=[], metavar="N,N", help="this machine's GPUs, as in 0,1,2,3")
    add("--gc-type", choices=("none", "2bit"), default="none", help="gradient compression")
    add("--gc-threshold", type=positive, default=0.5, help="its threshold")


def add_number(add: Callable[..., Any], name: str, low: int, text: str, default: Optional[int] = None) -> None:
    """Adds an option that is a whole number from `low` up."""
    add(name, type=at_least(low), default=default, metavar="N", help=text)


def _add_switch(add: Callable[..., Any], name: str, text: str) -> None:
    """Adds an option without a value, or with 0 or 1 as in MXNet's examples."""
    add(name, type=switch, nargs="?", const=True, default=False, metavar="0|1", help=text)


def settings_of_network(options: argparse.Namespace) -> List[Tuple[str, object]]:
    """The options that a saved model depends on: training can only be resumed with the same ones."""
    names = ("network", "num_layers", "num_classes", "image_shape", "dtype")
    return [(name, getattr(options, name)) for name in names]


# -- values: from the words of a command line to numbers, or to an error -----------------------------------------------


def at_least(low: int) -> Callable[[str], int]:
    """Returns a parser for whole numbers from `low` up."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} up")
        return value

    return whole_number


def _number_type(allowed: Callable[[float], bool], said: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = _number(text)
        if value is None or not allowed(value) or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {said}")
        return value

    return number


positive = _number_type(lambda value: value > 0, "above 0")
not_negative = _number_type(lambda value: value >= 0, "from 0 up")


def switch(text: str) -> bool:
    """Parses 0 or 1."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return text == "1"


def numbers(text: str) -> List[int]:
    """Parses whole numbers from 0 up, separated by commas; may be empty."""
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1]
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, as in 0,1")
    return values


def image_shape(text: str) -> Tuple[int, int, int]:
    """Parses channels, rows and columns."""
    try:
        channels, rows, columns = [int(part) for part in text.split(",")]
    except ValueError:
        channels = rows = columns = 0
    if channels not in (1, 3) or rows < 1 or columns < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image's channels (1 or 3), rows and columns, as in 3,224,224"
        )
    return channels, rows, columns


def colours(text: str) -> Tuple[float, float, float]:
    """Parses three numbers: for red, green and blue."""
    parts = [_number(part) for part in text.split(",")]
    found = [part for part in parts if part is not None]
    if len(parts) != 3 or len(found) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers, as in 123.68,116.779,103.939")
    return found[0], found[1], found[2]


def losses(text: str) -> List[str]:
    """Parses `ce` and `nll`, separated by commas, in the given order."""
    names = [part.strip().replace("nll_loss", "nll").replace("nll-loss", "nll") for part in text.split(",")]
    names = [name for name in names if name]
    if any(name not in ("ce", "nll") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: the losses that can be shown are ce and nll")
    return names


def count_or_all(text: str) -> int:
    """Parses how many checkpoints to keep; 0 means all of them."""
    return 0 if text == "all" else at_least(1)(text)


def _number(text: str) -> Optional[float]:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # noqa: PLR0124 - not a number


# -- images: their shape, and how they are distorted -------------------------------------------------------------------

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


def _add_images(parser: argparse.ArgumentParser, images: Images) -> None:
    """Adds the options, with the script's own defaults."""
    add = parser.add_argument_group("images").add_argument
    add(
        "--image-shape", type=image_shape, default=images.shape, metavar="C,H,W",
        help="channels, rows, columns that the network sees; " + ",".join(map(str, images.shape)),
    )  # fmt: skip
    for name, text, default in (
        ("rgb-mean", "what is taken off each colour, of 0 to 255", images.rgb_mean),
        ("rgb-std", "what it is then divided by", images.rgb_std),
    ):
        add(
            f"--{name}", type=colours, default=default, metavar="R,G,B",
            help=f"{text}; {','.join('%g' % value for value in default)}",
        )  # fmt: skip
    add_number(add, "--pad-size", 0, "border put around", default=images.pad_size)
    add_number(add, "--fill-value", 0, "the border's colour, to 255", default=127)
    distort = parser.add_argument_group("distortion of training images")
    for name, kind, neutral, _, text in _DISTORTIONS:
        extra = {"nargs": "?", "const": True, "metavar": "0|1"} if kind is switch else {"metavar": "X"}
        distort.add_argument(f"--{name}", type=kind, default=images.distort.get(name, neutral), help=text, **extra)


def reader_settings(options: argparse.Namespace) -> Dict[str, object]:
    """ImageRecordIter's settings for all images."""
    settings: Dict[str, object] = {"data_shape": options.image_shape, "pad": options.pad_size}
    settings["fill_value"] = options.fill_value
    for kind, values in (("mean", options.rgb_mean), ("std", options.rgb_std)):
        settings.update({f"{kind}_{colour}": value for colour, value in zip("rgb", values)})  # noqa: B905 - 3.6
    return settings


def distortions(options: argparse.Namespace) -> Dict[str, object]:
    """ImageRecordIter's additional settings for training images: those that are not neutral."""
    chosen = ((their, getattr(options, name.replace("-", "_")), neutral) for name, _, neutral, their, _ in _DISTORTIONS)
    return {their: value for their, value, neutral in chosen if value != neutral}
