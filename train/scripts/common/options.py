"""The options of the training scripts, in the words that MXNet's users know. Does not import MXNet.

Everything that can be seen to be wrong here is refused here, with exit code 2, in every process of the job:
servers and the scheduler run the same command, and importing MXNet would already make them wait for the
workers.
"""

import argparse
import os
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence

KV_STORES = ("local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device")
OPTIMIZERS = (
    "sgd", "nag", "signum", "dcasgd", "adam", "adamax", "nadam", "adagrad", "adadelta", "rmsprop", "ftml",
    "ftrl",
)  # fmt: skip
_WITH_MOMENTUM = ("sgd", "nag", "signum", "dcasgd")
DATA_URL = "CLUSTER_DATA_URL"  # set by `cluster train` from cluster.toml's [data] url
_DMLC = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")


class Defaults(NamedTuple):
    """Where the scripts differ."""

    network: str
    batch_size: int
    num_epochs: int
    lr: float
    wd: float
    num_classes: int


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not that there is none."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        return super()._get_help_string(action) if action.default else action.help


def make_parser(description: str, networks: Sequence[str], defaults: Defaults) -> argparse.ArgumentParser:
    """The parser with every group of options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=_Formatter, allow_abbrev=False)
    _add_network(parser, networks, defaults)
    _add_data(parser)
    _add_fit(parser, defaults)
    _add_model(parser)
    _add_cluster(parser)
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """The options, checked against each other; exits with code 2 and one sentence where they cannot work."""
    options = parser.parse_args(arguments)
    if options.kv_store is None:
        options.kv_store = "dist_sync" if "DMLC_ROLE" in environment else "local"
    if options.lr_step_epochs is None:
        options.lr_step_epochs = sorted({options.num_epochs // 2, options.num_epochs * 3 // 4} - {0})
    if not (options.data_dir or options.data_train or options.data_val):
        options.data_dir = environment.get(DATA_URL)
    for problem in _problems(options, environment):
        parser.error(problem)
    return options


def has_momentum(optimizer: str) -> bool:
    """Whether the optimizer takes --mom."""
    return optimizer in _WITH_MOMENTUM


def is_folder_or_records(uri: str) -> bool:
    """Whether it names RecordIO data: `a.rec`, `a.rec;b.rec`, or a folder, which ends with a slash."""
    return uri.endswith("/") or all(part.endswith(".rec") for part in uri.split(";"))


def _add_network(parser: argparse.ArgumentParser, networks: Sequence[str], defaults: Defaults) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--network", choices=networks, default=defaults.network, help="what to train")
    group.add_argument(
        "--num-classes", type=_at_least(2), default=defaults.num_classes, metavar="N", help="number of labels"
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data", "local paths, or s3:// read by MXNet itself; each worker reads its part")
    group.add_argument(
        "--data-dir",
        metavar="URI",
        help="folder with MNIST's four idx-ubyte files, under their own names, unzipped",
    )
    group.add_argument(
        "--data-train",
        metavar="URI",
        help="RecordIO: one .rec, 'a.rec;b.rec', or a folder with a trailing slash",
    )
    group.add_argument("--data-val", metavar="URI", help="the same for validation; every worker reads all of it")
    group.add_argument(
        "--num-examples",
        type=_at_least(1),
        metavar="N",
        help="training examples in all workers' parts together; counted at the start where it is not given",
    )
    group.add_argument("--data-nthreads", type=_at_least(1), default=2, metavar="N", help="threads that decode images")
    group.add_argument("--test-io", action="store_true", help="only read the training data and tell how fast")


def _add_fit(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    group = parser.add_argument_group("training")
    number = _at_least(1)
    group.add_argument(
        "--batch-size",
        type=number,
        default=defaults.batch_size,
        metavar="N",
        help="examples per worker and step",
    )
    group.add_argument("--num-epochs", type=number, default=defaults.num_epochs, metavar="N", help="epochs in all")
    group.add_argument("--lr", type=_positive, default=defaults.lr, help="learning rate to begin with")
    group.add_argument("--lr-factor", type=_positive, default=0.1, help="what a step multiplies it with")
    group.add_argument(
        "--warmup-epochs",
        type=_at_least(0),
        default=1,
        metavar="N",
        help="epochs in which it rises to --lr, from a tenth of it",
    )
    group.add_argument(
        "--lr-step-epochs",
        type=_numbers,
        metavar="N,N",
        help="after which epochs it steps, as in 10,15; '' for never; by default after 1/2 and 3/4 of them",
    )
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="MXNet's optimizer")
    group.add_argument("--mom", type=float, default=0.9, help="momentum; for " + ", ".join(_WITH_MOMENTUM))
    group.add_argument("--wd", type=float, default=defaults.wd, help="weight decay")
    group.add_argument("--top-k", type=_at_least(0), default=0, metavar="K", help="report top-k accuracy too; 0: no")
    group.add_argument("--seed", type=_at_least(0), default=0, metavar="N", help="of weights and of data order")
    group.add_argument("--disp-batches", type=number, default=20, metavar="N", help="batches between two reports")
    group.add_argument("--monitor", type=_at_least(0), default=0, metavar="N", help="log norms every N batches; 0: no")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model-prefix", metavar="PREFIX", help="save here after each epoch: a local path or s3://")
    group.add_argument(
        "--load-epoch",
        type=_at_least(1),
        metavar="N",
        help="go on from the model that was saved after epoch N",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--kv-store",
        choices=KV_STORES,
        help="how workers exchange gradients; dist_sync under launch.py, else local",
    )
    group.add_argument("--gpus", type=_numbers, default=[], metavar="N,N", help="this machine's GPUs, as in 0,1,2,3")
    group.add_argument("--gc-type", choices=("none", "2bit"), default="none", help="gradient compression")
    group.add_argument("--gc-threshold", type=_positive, default=0.5, help="its threshold")


def _problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    """What is wrong between options, and between them and the environment; the user reads the first."""
    return _data_problems(options) + _fit_problems(options) + _cluster_problems(options, environment)


def _data_problems(options: argparse.Namespace) -> List[str]:
    problems = []
    if not options.data_dir and not options.data_train:
        problems.append(f"no data: give --data-dir (idx-ubyte files), --data-train (RecordIO) or ${DATA_URL}")
    if options.data_dir and (options.data_train or options.data_val):
        problems.append("--data-dir excludes --data-train and --data-val")
    for name, uri in (("--data-train", options.data_train), ("--data-val", options.data_val)):
        if uri and not is_folder_or_records(uri):
            problems.append(f"{name} {uri}: ends neither with .rec nor, as a folder does, with a slash")
    return problems


def _fit_problems(options: argparse.Namespace) -> List[str]:
    problems = []
    if options.load_epoch and not options.model_prefix:
        problems.append("--load-epoch needs --model-prefix, where the model was saved")
    if options.load_epoch and options.load_epoch >= options.num_epochs:
        problems.append(
            f"--load-epoch {options.load_epoch}: nothing to do, --num-epochs is {options.num_epochs} in all"
        )
    if options.top_k > options.num_classes:
        problems.append(f"--top-k {options.top_k}: there are only {options.num_classes} classes")
    if len(set(options.gpus)) < len(options.gpus):
        problems.append("--gpus names a GPU twice")
    if options.batch_size < len(options.gpus):
        problems.append(f"--batch-size {options.batch_size} is less than one per GPU")
    return problems


def _cluster_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    distributed = options.kv_store.startswith("dist")
    missing = [name for name in _DMLC if not environment.get(name)]
    problems = []
    if distributed and missing:
        problems.append(
            f"--kv-store {options.kv_store} needs what launch.py sets ({', '.join(missing)} missing): "
            "start it with `cluster train`, or use --kv-store local"
        )
    if not distributed and "DMLC_ROLE" in environment:
        problems.append(
            f"--kv-store {options.kv_store} under launch.py: every worker would train alone and the servers "
            "wait for ever; use --kv-store dist_sync"
        )
    if options.gc_type != "none" and not distributed:
        problems.append(f"--gc-type {options.gc_type} needs --kv-store dist_*: it compresses what goes over the net")
    if options.optimizer == "dcasgd" and options.kv_store != "dist_async":
        problems.append("--optimizer dcasgd is for --kv-store dist_async")
    return problems


def _at_least(low: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} up")
        return value

    return whole_number


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _numbers(text: str) -> List[int]:
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1]
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, as in 0,1")
    return values
