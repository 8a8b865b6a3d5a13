"""The options of the training scripts, in the words that MXNet's users know. Does not import MXNet.

Everything that can be seen to be wrong is refused here and in `checks`, with exit code 2, in every process of the
job: servers and the scheduler run the same command, and importing MXNet would already make them wait for the workers.
"""

import argparse
import os
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

from common import checks, image_options
from common.image_options import Images
from common.values import at_least, count_or_all, losses, not_negative, numbers, positive, switch

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
AUTO = "auto"


class Defaults(NamedTuple):
    """Where the scripts differ. images: None for MNIST, whose images have one shape and are not distorted."""

    network: str
    batch_size: int
    num_epochs: int
    lr: float
    wd: float
    num_classes: int
    warmup_epochs: int = 1
    lr_step_epochs: Optional[Tuple[int, ...]] = None  # None: after a half and three quarters of them
    num_examples: Optional[int] = None  # None: counted
    images: Optional[Images] = None


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not that there is none."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        if action.default is True:
            return f"{action.help} (default: 1)"
        shown = action.default and not isinstance(action.default, (list, tuple))
        return super()._get_help_string(action) if shown else action.help


def make_parser(description: str, networks: Sequence[str], defaults: Defaults) -> argparse.ArgumentParser:
    """The parser with every group of options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=_Formatter, allow_abbrev=False)
    _add_network(parser, networks, defaults)
    _add_data(parser, defaults)
    if defaults.images is not None:
        image_options.add(parser, defaults.images)
    _add_training(parser, defaults)
    _add_rate(parser, defaults)
    _add_reports(parser)
    _add_model(parser)
    _add_cluster(parser)
    parser.set_defaults(usual=defaults)
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """The options, checked against each other; exits with code 2 and one sentence where they cannot work."""
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
    """What the user left out, where it depends on something else."""
    if options.kv_store is None:
        options.kv_store = "dist_sync" if "DMLC_ROLE" in environment else "local"
    if options.num_epochs is None:
        options.num_epochs = 1 if options.benchmark else usual.num_epochs
    if options.lr_step_epochs is None and usual.lr_step_epochs is not None:
        options.lr_step_epochs = list(usual.lr_step_epochs)
    elif options.lr_step_epochs is None:
        options.lr_step_epochs = sorted({options.num_epochs // 2, options.num_epochs * 3 // 4} - {0})
    if usual.images is None:
        options.image_shape = (1, 28, 28)
    _fill_in_data(options, usual, environment)
    options.auto_prefix = options.model_prefix == AUTO
    if options.auto_prefix:
        url = environment.get(OUTPUT_URL)
        folder = environment.get(OUTPUT_DIR)
        if url or folder:
            options.model_prefix = f"{url.rstrip('/')}/model" if url else os.path.join(str(folder), "model")


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
    group = parser.add_argument_group("network")
    group.add_argument("--network", choices=networks, default=defaults.network, help="what to train")
    group.add_argument(
        "--num-layers", type=at_least(1), metavar="N", help="depth, as in ResNet-50; by default the network's usual one"
    )
    group.add_argument(
        "--num-classes", type=at_least(2), default=defaults.num_classes, metavar="N", help="number of labels"
    )
    group.add_argument("--initializer", choices=INITIALIZERS, default="default", help="of the weights")
    group.add_argument(
        "--dtype",
        choices=("float32", "float16"),
        default="float32",
        help="float16: half precision, weights kept in both",
    )


def _add_data(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    group = parser.add_argument_group("data", "local paths, or s3:// read by MXNet itself; each worker reads its part")
    if defaults.images is None:
        group.add_argument(
            "--data-dir",
            metavar="URI",
            help="folder with MNIST's four idx-ubyte files, under their own names, unzipped",
        )
    else:
        parser.set_defaults(data_dir=None)
    group.add_argument(
        "--data-train", metavar="URI", help="RecordIO: one .rec, 'a.rec;b.rec', or a folder with a trailing slash"
    )
    group.add_argument("--data-train-idx", metavar="URI", help="the .idx file of a single .rec; not needed")
    group.add_argument("--data-val", metavar="URI", help="the same for validation; every worker reads all; '' for none")
    group.add_argument("--data-val-idx", metavar="URI", help="its .idx file; not needed")
    usual = defaults.num_examples
    group.add_argument(
        "--num-examples",
        type=at_least(0),
        metavar="N",
        help="training examples in all workers' parts together; "
        + (f"{usual} where it is not given, counted if 0" if usual else "counted at the start where it is not given"),
    )
    threads = 2 if defaults.images is None else 4
    group.add_argument(
        "--data-nthreads", type=at_least(1), default=threads, metavar="N", help="threads that decode images"
    )
    _add_switch(group, "--test-io", "only read the training data and tell how fast")
    _add_switch(group, "--benchmark", "train on made-up images: no data is read; one epoch of 500 batches")


def _add_training(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--batch-size", type=at_least(1), default=defaults.batch_size, metavar="N", help="examples per worker and step"
    )
    group.add_argument(
        "--macrobatch-size",
        type=at_least(0),
        default=0,
        metavar="N",
        help="examples of all workers per update, if more than one step's: gradients are added up over several steps",
    )
    group.add_argument(
        "--num-epochs",
        type=at_least(1),
        metavar="N",
        help=f"epochs in all; {defaults.num_epochs}, or 1 with --benchmark",
    )
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="MXNet's optimizer")
    group.add_argument("--mom", type=not_negative, default=0.9, help="momentum; for " + ", ".join(_WITH_MOMENTUM))
    group.add_argument("--wd", type=not_negative, default=defaults.wd, help="weight decay")
    group.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="of weights and of data order")


def _add_rate(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    group = parser.add_argument_group("learning rate")
    group.add_argument("--lr", type=positive, default=defaults.lr, help="learning rate to begin with")
    group.add_argument("--lr-factor", type=positive, default=0.1, help="what a step multiplies it with")
    steps = "1/2 and 3/4 of them" if defaults.lr_step_epochs is None else ",".join(map(str, defaults.lr_step_epochs))
    group.add_argument(
        "--lr-step-epochs",
        type=numbers,
        metavar="N,N",
        help=f"after which epochs it steps, as in 10,15; '' for never; by default after {steps}",
    )
    group.add_argument(
        "--warmup-epochs",
        type=at_least(0),
        default=defaults.warmup_epochs,
        metavar="N",
        help="epochs in which it rises to --lr, from a tenth of it",
    )
    group.add_argument("--warmup-strategy", choices=WARMUPS, default="linear", help="how it rises")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument("--disp-batches", type=at_least(1), default=20, metavar="N", help="batches between two reports")
    group.add_argument("--top-k", type=at_least(0), default=0, metavar="K", help="report top-k accuracy too; 0: no")
    group.add_argument("--loss", type=losses, default=[], metavar="ce,nll", help="report these losses too")
    group.add_argument("--monitor", type=at_least(0), default=0, metavar="N", help="log norms every N batches; 0: no")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model-prefix",
        metavar="PREFIX",
        help="save checkpoints here: a local path or s3://; auto: in the job's own output folder",
    )
    group.add_argument("--save-period", type=at_least(1), default=1, metavar="N", help="epochs between two of them")
    group.add_argument(
        "--keep-checkpoints", type=count_or_all, default=0, metavar="N", help="how many to keep; all by default"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on from the newest complete checkpoint, or begin if there is none"
    )
    group.add_argument("--load-epoch", type=at_least(1), metavar="N", help="go on from what was saved after epoch N")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--kv-store", choices=KV_STORES, help="how workers exchange gradients; dist_sync under launch.py, else local"
    )
    group.add_argument("--gpus", type=numbers, default=[], metavar="N,N", help="this machine's GPUs, as in 0,1,2,3")
    group.add_argument("--gc-type", choices=("none", "2bit"), default="none", help="gradient compression")
    group.add_argument("--gc-threshold", type=positive, default=0.5, help="its threshold")


def _add_switch(group: "argparse._ArgumentGroup", name: str, text: str) -> None:
    """An option that is given alone, or with 0 or 1 as the field writes it."""
    group.add_argument(name, type=switch, nargs="?", const=True, default=False, metavar="0|1", help=text)


def settings_of_network(options: argparse.Namespace) -> List[Tuple[str, object]]:
    """The options that a saved model depends on: with others, it cannot be gone on with."""
    names = ("network", "num_layers", "num_classes", "image_shape", "dtype")
    return [(name, getattr(options, name)) for name in names]
