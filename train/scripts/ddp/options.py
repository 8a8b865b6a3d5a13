"""The options of the PyTorch script: those of the MXNet scripts that apply to it. Does not import torch."""

import argparse
import os
from typing import List, Mapping, Sequence

from common import checks
from common.options import (
    DATA_URL,
    Defaults,
    Formatter,
    add_model,
    add_number,
    add_rate,
    fill_in_rate_and_model,
    not_negative,
)

BACKENDS = ("auto", "gloo", "nccl")
# torchrun sets these, and so does `cluster train` with launcher = "env".
REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def parse(
    description: str,
    networks: Sequence[str],
    defaults: Defaults,
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> argparse.Namespace:
    """The options, checked against each other; exits with code 2 and a message if they are invalid."""
    parser = _make_parser(description, networks, defaults)
    options = parser.parse_args(arguments)
    if not options.data_dir and not options.data_train:
        options.data_dir = environment.get(DATA_URL)
    fill_in_rate_and_model(options, defaults, environment)
    for problem in _find_problems(options, environment):
        parser.error(problem)
    return options


def is_distributed(environment: Mapping[str, str]) -> bool:
    """Whether a launcher started this process as one rank of a job, perhaps the only one."""
    return "RANK" in environment or "WORLD_SIZE" in environment


def _make_parser(description: str, networks: Sequence[str], defaults: Defaults) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=Formatter, allow_abbrev=False)
    add = parser.add_argument_group("network").add_argument
    add("--network", choices=networks, default=defaults.network, help="what to train")
    add = parser.add_argument_group("data", "local paths or s3://; each rank trains on its part").add_argument
    add("--data-dir", metavar="URI", help="folder with MNIST's four idx-ubyte files, under their own names, unzipped")
    add("--data-train", metavar="URI", help="RecordIO: one .rec, 'a.rec;b.rec', or a folder with a trailing slash")
    add("--data-val", metavar="URI", help="the same for validation")
    add = parser.add_argument_group("training").add_argument
    add_number(add, "--batch-size", 1, "examples per rank and step", default=defaults.batch_size)
    add_number(add, "--num-epochs", 1, "epochs in all", default=defaults.num_epochs)
    add("--mom", type=not_negative, default=0.9, help="momentum of SGD")
    add("--wd", type=not_negative, default=defaults.wd, help="weight decay")
    add_number(add, "--seed", 0, "of weights and of data order", default=0)
    add_rate(parser, defaults)
    add = parser.add_argument_group("reports").add_argument
    add_number(add, "--disp-batches", 1, "batches between two reports", default=20)
    add_model(parser)
    add = parser.add_argument_group("process group").add_argument
    add("--dist-backend", choices=BACKENDS, default="auto", help="auto: nccl if every rank has a GPU, else gloo")
    add_number(add, "--dist-timeout", 1, "seconds in which all ranks must join", default=120)
    return parser


def _find_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    return _data_problems(options) + checks.model_problems(options, environment) + _rank_problems(options, environment)


def _data_problems(options: argparse.Namespace) -> List[str]:
    problems = []
    if not options.data_dir and not options.data_train:
        problems.append("no data: add --data-dir (idx-ubyte files), --data-train (RecordIO) or $CLUSTER_DATA_URL")
    if options.data_dir and (options.data_train or options.data_val):
        problems.append("--data-dir excludes --data-train and --data-val")
    for name, uri in (("--data-train", options.data_train), ("--data-val", options.data_val)):
        if uri and not checks.is_folder_or_records(uri):
            problems.append(f"{name} {uri}: ends neither with .rec nor, as a folder does, with a slash")
    return problems


def _rank_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    problems = []
    if options.load_epoch and options.load_epoch >= options.num_epochs:
        problems.append(f"--load-epoch {options.load_epoch}: nothing to do, --num-epochs is {options.num_epochs}")
    if not is_distributed(environment):
        return problems
    missing = [name for name in REQUIRED if not environment.get(name)]
    if missing:
        problems.append(
            f"this is one rank of several, but {', '.join(missing)} missing from the environment: "
            "start it with `cluster train` or torchrun"
        )
        return problems
    numbers = [environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    if not all(number.isdigit() for number in numbers) or int(numbers[0]) >= int(numbers[1]):
        problems.append("RANK={}, WORLD_SIZE={}, MASTER_PORT={}: not a rank below the world size".format(*numbers))
    return problems
