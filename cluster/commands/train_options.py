"""The options of `cluster train` that describe the job, and the overrides of cluster.toml that they become.

launch.py's own option names work: -n, -s, -H, --launcher, --sync-dst-dir, --env-server, --env-worker, --p3.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import click

from cluster.config import load_job_file
from foundation.errors import UsageError
from train.job.protocol import ENV_NAME_PATTERN, SHELL, KvStore, Launcher

P = ParamSpec("P")
T = TypeVar("T")
_GPUS = re.compile(r"[0-9]+(,[0-9]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """What a command line asks for.

    overrides: values by dotted key, for App.overrides; those of the job file are among them, under the command line's.
    command: what follows --, as `as_command` has it, else the job file's; empty: [train] script is run.
    hidden: by key (env, env_server, env_worker), the variables whose values came from this machine's environment.
    They may be secrets, whatever they are called, and are shown nowhere.
    """

    overrides: Mapping[str, Any]
    command: tuple[str, ...]
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def train_options(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a command with the options, which it passes to `read`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "-n",
        "--workers",
        "--num-workers",
        "workers",
        type=int,
        metavar="W",
        help="Workers; default: one for each node.",
    ),
    click.option(
        "-s",
        "--servers",
        "--num-servers",
        "servers",
        type=int,
        metavar="S",
        help="Servers; default: as many as workers.",
    ),
    click.option(
        "-H",
        "--hostfile",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Only on these hosts, one a line: nodes, or hosts of your own.",
    ),
    click.option("--launcher", type=click.Choice(get_args(Launcher)), help="How launch.py starts processes."),
    click.option("--kv-store", type=click.Choice(get_args(KvStore)), help="How gradients are exchanged."),
    click.option("--gc-type", type=click.Choice(["none", "2bit"]), help="Gradient compression."),
    click.option("--gc-threshold", type=float, metavar="X", help="Its threshold; default: 0.5."),
    click.option("--p3", is_flag=True, help="Send parameters by priority (MXNet 1.7 and later)."),
    click.option("--gpus", metavar="N,N", help='GPUs of each worker: "0,1", "auto" or "none".'),
    click.option(
        "--env",
        multiple=True,
        metavar="K[=V]",
        help="An environment variable of the job; without =V: with the value that it has here; repeatable.",
    ),
    click.option("--env-server", multiple=True, metavar="K[=V]", help="One of its servers alone; repeatable."),
    click.option("--env-worker", multiple=True, metavar="K[=V]", help="One of its workers alone; repeatable."),
    click.option(
        "--sync-dst-dir", "--sync-dir", "sync_dst_dir", metavar="DIR", help="Copy your files to DIR and run there."
    ),
    click.option("--max-duration", metavar="TIME", help='End the job after so long: "90m", "2h", "1d" or seconds.'),
    click.option("--name", metavar="NAME", help="What the job is called; default: after its script or command."),
    click.option("--queue", is_flag=True, help="Wait for the job that runs, where there is one."),
    click.option("--job", type=click.Path(path_type=Path), metavar="FILE", help="A job file: [train]'s keys, in TOML."),
)


def read(options: Mapping[str, Any], command: Sequence[str]) -> TrainRequest:
    """The request that the options of `train_options` make; `command` is what follows --.

    Reads the job file, the hostfile and the environment. Raises UsageError, and ConfigError for a mistake in the job
    file.
    """
    of_file: dict[str, Any] = {}
    words = as_command(command)
    if options["job"] is not None:
        of_file, of_command = load_job_file(options["job"])
        words = words or of_command
    plain = ("workers", "servers", "launcher", "kv_store", "gc_type", "gc_threshold", "sync_dst_dir", "name")
    given = {key: options[key] for key in plain if options[key] is not None}
    given |= {key: True for key in ("p3", "queue") if options[key]}
    if options["hostfile"] is not None:
        given["hosts"] = read_hostfile(options["hostfile"])
    if options["gpus"] is not None:
        given["gpus"] = parse_gpus(options["gpus"])
    if options["max_duration"] is not None:
        text = options["max_duration"]
        given["max_duration"] = int(text) if text.isdecimal() else text
    hidden: dict[str, tuple[str, ...]] = {}
    for key in ("env", "env_server", "env_worker"):
        if options[key]:
            option = f"--{key.replace('_', '-')}"
            variables = dict(parse_variable(word, option=option, here=os.environ) for word in options[key])
            given[key] = {**of_file.get(f"train.{key}", {}), **variables}
            hidden[key] = find_hidden(options[key])
    overrides = {**of_file, **{f"train.{key}": value for key, value in given.items()}}
    return TrainRequest(overrides=overrides, command=words, hidden=hidden)


def find_hidden(words: Sequence[str]) -> tuple[str, ...]:
    """The variables that were given as NAME, without =VALUE; the last word on each counts. Pure."""
    is_typed = {word.partition("=")[0]: "=" in word for word in words}
    return tuple(name for name, typed in is_typed.items() if not typed)


def as_command(words: Sequence[str]) -> tuple[str, ...]:
    """The command that words after `cluster train` stand for.

    A single word with blanks, "python my.py --lr 0.1", is a line for the shell, as it is for launch.py; unless it names
    a file here, whose name has blanks.
    """
    if len(words) == 1 and len(words[0].split()) > 1 and not Path(words[0]).exists():
        return (*SHELL, words[0])
    return tuple(words)


def parse_variable(word: str, *, option: str, here: Mapping[str, str]) -> tuple[str, str]:
    """Name and value of "NAME=VALUE", or of a NAME that has its value `here`, in the environment of this machine. Pure.

    Raises UsageError, with a hint for launch.py's NAME:VALUE.
    """
    name, equals, value = word.partition("=")
    is_name = re.fullmatch(ENV_NAME_PATTERN, name) is not None
    if is_name and equals:
        return name, value
    if is_name and name in here:  # keeps it out of process lists
        return name, here[name]
    # A value may be a secret, so no message repeats it.
    if is_name:
        raise UsageError(
            f'{option} "{name}": this variable is not set here',
            hint=f"export {name} first; or {option} {name}=..., which process lists on this machine show",
        )
    of_launch = re.fullmatch(rf"({ENV_NAME_PATTERN}):.*", word, re.DOTALL)
    if of_launch is not None:
        hint = f"{option} {of_launch[1]}=... (launch.py's NAME:VALUE is written with = here)"
        raise UsageError(f'{option} "{of_launch[1]}:...": must be NAME=VALUE', hint=hint)
    before = re.split("[:=]", word)[0]
    said = f'{option} "{before}=..."' if value.strip("=") else option  # base64 may end with =
    raise UsageError(f"{said}: must be NAME=VALUE or NAME, a name of letters A to Z, digits and _")


def parse_gpus(text: str) -> str | list[int]:
    """The value of [train] gpus for that of --gpus. Pure. Raises UsageError."""
    if text in ("auto", "none"):
        return text
    if _GPUS.fullmatch(text) is None:
        raise UsageError(f'--gpus "{text}": must be numbers with commas between them, "auto" or "none"')
    return [int(number) for number in text.split(",")]


def read_hostfile(path: Path) -> list[str]:
    """The hosts of a hostfile as launch.py takes it: one a line, # comments aside. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--hostfile {path}: cannot be read: {said}") from error
    hosts = [line.partition("#")[0].strip() for line in lines]
    hosts = [host for host in hosts if host]
    if not hosts:
        hint = "one host a line: a node's name, or [user@]host[:port]"
        raise UsageError(f"--hostfile {path}: names no host", hint=hint)
    return hosts
