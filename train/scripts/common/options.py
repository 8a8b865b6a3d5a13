"""The options of the training scripts, with the names of MXNet's own examples. Does not import MXNet.

Invalid options end every process of the job with exit code 2: servers and the scheduler run the same command, and
importing MXNet would already make them wait for the workers.
"""

import argparse
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from common import network_names

KV_STORES = ("local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device")
OPTIMIZERS = (
    "sgd", "nag", "signum", "dcasgd", "adam", "adamax", "nadam", "adagrad", "adadelta", "rmsprop", "ftml",
    "ftrl",
)  # fmt: skip
WITH_MOMENTUM = ("sgd", "nag", "signum", "dcasgd")
JOB_ID = "CLUSTER_JOB_ID"  # this variable, and the others, are set by `cluster train`
IMAGES, DISTORTION = "images", "distortion of training images"
Parser = Callable[[str], Any]


# -- values: from a word of a command line -----------------------------------------------------------------------------


def whole(low: int) -> Parser:
    """Returns a parser for whole numbers from `low` up."""

    def whole_number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} up")
        return int(text)

    return whole_number


def switch(text: str) -> bool:
    """Parses 0 or 1, as MXNet's examples have it."""
    return ("0", "1").index(text) == 1


def numbers(text: str) -> List[int]:
    """Parses whole numbers, separated by commas; may be empty."""
    return [int(part) for part in text.split(",") if part.strip()]


def shape(text: str) -> Tuple[int, int, int]:
    """Parses channels, rows and columns."""
    channels, rows, columns = numbers(text)
    return channels, rows, columns


def colours(text: str) -> Tuple[float, float, float]:
    """Parses three numbers: for red, green and blue."""
    red, green, blue = [float(part) for part in text.split(",")]
    return red, green, blue


def losses(text: str) -> List[str]:
    """Parses `ce` and `nll`, separated by commas."""
    names = [part.strip().replace("nll_loss", "nll").replace("nll-loss", "nll") for part in text.split(",")]
    if any(name not in ("ce", "nll") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: the losses that can be shown are ce and nll")
    return names


# -- the options: name, type or choices, default, help -----------------------------------------------------------------

GROUPS: Dict[str, Sequence[Tuple[str, Any, Any, str]]] = {
    "network": (
        ("network", tuple(network_names.BY_NAME), "mlp", "what to train"),
        ("num-layers", whole(1), None, "depth, as in ResNet-50; by default the network's usual one"),
        ("num-classes", whole(2), 10, "number of labels"),
        ("initializer", ("default", "xavier", "msra", "orthogonal", "normal", "uniform", "one", "zero"), "default",
         "of the weights"),
        ("dtype", ("float32", "float16"), "float32", "float16: half precision, weights kept in both"),
    ),
    "data: local paths, or s3://; each worker reads its part": (
        ("data-dir", str, None, "folder with MNIST's four idx-ubyte files, under their own names, unzipped"),
        ("data-train", str, None, "RecordIO: one .rec, 'a.rec;b.rec', or a folder with a trailing slash"),
        ("data-train-idx", str, None, "the .idx file of a single .rec; not needed"),
        ("data-val", str, None, "the same for validation; every worker reads all; '' for none"),
        ("data-val-idx", str, None, "its .idx file; not needed"),
        ("num-examples", whole(0), 0, "training examples in all workers' parts together; 0: counted at the start"),
        ("data-nthreads", whole(1), 2, "threads that decode images"),
        ("test-io", switch, False, "only read the training data and report the speed"),
        ("benchmark", switch, False, "train on random images: no data is read; one epoch of 500 batches"),
    ),
    IMAGES: (
        ("image-shape", shape, (1, 28, 28), "channels, rows, columns that the network sees"),
        ("rgb-mean", colours, None, "what is taken off each colour, of 0 to 255"),
        ("rgb-std", colours, None, "what it is then divided by"),
        ("pad-size", whole(0), 0, "border put around"),
        ("fill-value", whole(0), 127, "the border's colour, to 255"),
    ),
    DISTORTION: (
        ("random-crop", switch, False, "cut out at a random place instead of the middle"),
        ("random-mirror", switch, False, "mirror every other image"),
        ("random-resized-crop", switch, False, "cut out at a random place, size and shape"),
        ("max-random-h", whole(0), 0, "change of hue, at most, 0 to 180"),
        ("max-random-s", whole(0), 0, "change of saturation, at most, 0 to 255"),
        ("max-random-l", whole(0), 0, "change of lightness, at most, 0 to 255"),
        ("max-random-aspect-ratio", float, 0.0, "change of shape, at most"),
        ("min-random-aspect-ratio", float, None, "the least shape of a resized crop"),
        ("max-random-rotate-angle", whole(0), 0, "degrees"),
        ("max-random-shear-ratio", float, 0.0, "shear, at most"),
        ("max-random-scale", float, 1.0, "the most that an image is enlarged"),
        ("min-random-scale", float, 1.0, "the least; images must stay larger than --image-shape"),
        ("max-random-area", float, 1.0, "the largest part of an image in a resized crop"),
        ("min-random-area", float, 1.0, "the smallest"),
        ("brightness", float, 0.0, "random change of brightness, at most"),
        ("contrast", float, 0.0, "of contrast"),
        ("saturation", float, 0.0, "of saturation"),
        ("pca-noise", float, 0.0, "noise along the colours' main directions"),
    ),
    "training": (
        ("batch-size", whole(1), 32, "examples per worker and step"),
        ("macrobatch-size", whole(0), 0,
         "examples of all workers per update, if more than one step's: gradients are added up over several steps"),
        ("num-epochs", whole(1), 20, "epochs in all; 1 with --benchmark, unless it is given"),
        ("optimizer", OPTIMIZERS, "sgd", "MXNet's optimizer"),
        ("mom", float, 0.9, "momentum; for " + ", ".join(WITH_MOMENTUM)),
        ("wd", float, 0.0001, "weight decay"),
        ("seed", whole(0), 0, "of weights and of data order"),
    ),
    "learning rate": (
        ("lr", float, 0.05, "learning rate to begin with"),
        ("lr-factor", float, 0.1, "what a step multiplies it with"),
        ("lr-step-epochs", numbers, None,
         "after which epochs it steps, as in 10,15; '' for never; after 1/2 and 3/4 of them unless there is a default"),
        ("warmup-epochs", whole(0), 1, "epochs in which it rises to --lr, from a tenth of it"),
        ("warmup-strategy", ("linear", "power2", "sqrt"), "linear", "how it rises"),
    ),
    "reports": (
        ("disp-batches", whole(1), 20, "batches between two reports"),
        ("top-k", whole(0), 0, "report top-k accuracy too; 0: no"),
        ("loss", losses, [], "report these losses too: ce,nll"),
        ("monitor", whole(0), 0, "log norms every N batches; 0: no"),
    ),
    "model": (
        ("model-prefix", str, None,
         "save checkpoints here: a local path or s3://; auto: in the job's own output folder"),
        ("save-period", whole(1), 1, "epochs between two of them"),
        ("checkpoint-batches", whole(1), None, "also save one every N batches; only the newest of these is kept"),
        ("keep-checkpoints", whole(1), None, "how many to keep; all by default"),
        ("resume", None, False, "continue from the newest complete checkpoint, or begin without one"),
        ("load-epoch", whole(1), None, "continue from the checkpoint of epoch N"),
    ),
    "cluster": (
        ("kv-store", KV_STORES, None, "how workers exchange gradients; dist_sync under launch.py, else local"),
        ("gpus", numbers, [], "this machine's GPUs, as in 0,1,2,3"),
        ("gc-type", ("none", "2bit"), "none", "gradient compression"),
        ("gc-threshold", float, 0.5, "its threshold"),
    ),
}  # fmt: skip


WAYS_TO_DATA = ("--data-train (RecordIO)", "--data-dir (MNIST's files)", "--benchmark 1")


def make_parser(
    description: Optional[str], networks: Sequence[str], *, without: Sequence[str] = (), **defaults: Any
) -> argparse.ArgumentParser:
    """The parser with all options, except those of these names or groups. defaults: where the script has its own."""
    # Every process shows the usage with an error.
    parser = argparse.ArgumentParser(usage="%(prog)s [options]", description=description, allow_abbrev=False)
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, kind, usual, text in options:
            attribute = name.replace("-", "_")
            default = defaults.pop(attribute, usual)
            if title in without or name in without:
                parser.set_defaults(**{attribute: default})
                continue
            shown = ",".join("%g" % each for each in default) if isinstance(default, tuple) else default
            words: Dict[str, Any] = {"default": default, "help": f"{text} (default: {shown})" if shown else text}
            if kind is None:
                words["action"] = "store_true"
            elif isinstance(kind, tuple):
                words["choices"] = networks if name == "network" else kind
            elif kind is switch:
                words.update(type=kind, nargs="?", const=True, metavar="0|1")
            else:
                words.update(type=kind, metavar=name.rpartition("-")[2].upper())
            group.add_argument("--" + name, **words)
    parser.set_defaults(**defaults)
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """The options, with defaults that depend on others or on the job; exits with code 2 if they exclude each other."""
    options = parser.parse_args(arguments, argparse.Namespace(num_epochs=None, num_examples=None))
    if options.num_epochs is None:
        options.num_epochs = 1 if options.benchmark else parser.get_default("num_epochs")
    if options.num_examples is None:
        options.num_examples = 0 if options.benchmark else parser.get_default("num_examples")
    if options.kv_store is None:
        options.kv_store = "dist_sync" if "DMLC_ROLE" in environment else "local"
    if options.lr_step_epochs is None:
        options.lr_step_epochs = sorted({options.num_epochs // 2, options.num_epochs * 3 // 4} - {0})
    _read_data_of_job(options, environment.get("CLUSTER_DATA_DIR") or environment.get("CLUSTER_DATA_URL", ""))
    if options.model_prefix == "auto":
        # `cluster train` replaces auto, and every s3:// prefix, if results are in S3.
        folders = [environment.get(name, "") for name in ("CLUSTER_OUTPUT_URL", "CLUSTER_OUTPUT_DIR")]
        output = next((folder for folder in folders if folder.startswith("/")), None)
        if output is None:
            parser.error("--model-prefix auto: $CLUSTER_OUTPUT_DIR is not set")
        options.model_prefix = output.rstrip("/") + "/model"
    options.only_job = None  # the job whose checkpoints --resume looks for; None: all jobs
    if environment.get("CLUSTER_RESUME") == "1" and options.model_prefix and not options.resume:
        # A later attempt. Its place may have checkpoints of earlier jobs, from which it must not continue.
        options.resume, options.only_job = True, environment.get(JOB_ID)
    shown = parser.format_help()
    ways = [way for way in WAYS_TO_DATA if f"\n  {way.split()[0]} " in shown]  # of this script
    for wrong, message in _problems(options, environment, ways):
        if wrong:
            parser.error(message)
    return options


def _read_data_of_job(options: argparse.Namespace, url: str) -> None:
    """Sets the options of the data, which is at [data] url where none is given."""
    if not url or options.benchmark or options.data_dir or options.data_train:
        return
    if options.rgb_mean is None:
        options.data_dir = url
        return
    options.data_train = url.rstrip("/") + "/train/"
    if options.data_val is None:
        options.data_val = url.rstrip("/") + "/val/"


def _problems(
    options: argparse.Namespace, environment: Mapping[str, str], ways: Sequence[str]
) -> List[Tuple[Any, str]]:
    """Whether each reason applies why the options cannot be used together, and its message."""
    data = [options.data_train, options.data_val]
    prefix, store = options.model_prefix or "", options.kv_store
    distributed = store.startswith("dist")
    network = network_names.find_problem(options.network, options.num_layers, min(options.image_shape[1:]))
    return [
        (network, network or ""),
        (
            options.benchmark and (options.data_dir or any(data)),
            "--benchmark reads no data: leave out the options of the data",
        ),
        (
            not (options.benchmark or options.data_dir or options.data_train),
            "no data: set [data] url in cluster.toml, or add " + " or ".join(ways),
        ),
        (options.data_dir and any(data), "--data-dir excludes --data-train and --data-val"),
        (
            any(uri and not uri.endswith(("/", ".rec")) for uri in data),
            "--data-train and --data-val end with .rec or, as a folder does, with a slash",
        ),
        (
            not prefix and (options.resume or options.load_epoch or options.checkpoint_batches),
            "--resume, --load-epoch and --checkpoint-batches need --model-prefix, where the checkpoints are",
        ),
        (
            prefix.endswith("/") or ("://" in prefix and not re.match("s3://[^/]+/.", prefix)),
            f"--model-prefix {prefix}: is not the beginning of names, as in s3://bucket/model or models/model",
        ),
        (options.dtype == "float16" and not options.gpus, "--dtype float16 needs --gpus"),
        (options.dtype == "float16" and options.gc_type != "none", "--gc-type only compresses float32"),
        (not distributed and options.gc_type != "none", f"--gc-type {options.gc_type} needs --kv-store dist_*"),
        (
            distributed and "DMLC_ROLE" not in environment,
            f"--kv-store {store} needs what launch.py sets, such as DMLC_ROLE: start it with `cluster train`",
        ),
        (
            not distributed and "DMLC_ROLE" in environment,
            f"--kv-store {store} under launch.py: every worker would train on its own; use --kv-store dist_sync",
        ),
    ]


# -- ImageRecordIter's settings ----------------------------------------------------------------------------------------

_OTHER_NAMES = {
    "random_crop": "rand_crop", "random_mirror": "rand_mirror", "max_random_h": "random_h", "max_random_s": "random_s",
    "max_random_l": "random_l", "max_random_aspect_ratio": "max_aspect_ratio",
    "min_random_aspect_ratio": "min_aspect_ratio", "max_random_rotate_angle": "max_rotate_angle",
    "max_random_shear_ratio": "max_shear_ratio",
}  # fmt: skip


def reader_settings(options: argparse.Namespace) -> Dict[str, object]:
    """The settings for all images; those of MNIST are scaled as MNISTIter scales them."""
    if options.rgb_mean is None:
        return {"data_shape": options.image_shape, "scale": 1 / 256}
    settings = {"data_shape": options.image_shape, "pad": options.pad_size, "fill_value": options.fill_value}
    for kind, values in (("mean", options.rgb_mean), ("std", options.rgb_std)):
        settings.update({f"{kind}_{colour}": value for colour, value in zip("rgb", values)})  # noqa: B905 - 3.6
    return settings


def distortions(options: argparse.Namespace) -> Dict[str, object]:
    """Additional settings for training images: those that are not neutral."""
    chosen = ((name.replace("-", "_"), neutral) for name, _, neutral, _ in GROUPS[DISTORTION])
    values = ((name, getattr(options, name), neutral) for name, neutral in chosen)
    return {_OTHER_NAMES.get(name, name): value for name, value, neutral in values if value != neutral}
