"""The request that a command line of `cluster train` makes: a script or a command, and values for cluster.toml."""

import difflib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, field

from bootstrap.ssh.host_list import read_host_list
from cluster.config import load_job_file
from cluster.submission.launchers import runs_others
from foundation.errors import UsageError
from node.protocol import SHELL
from node.train_settings import ENV_NAME_PATTERN, ENVIRONMENTS, GcType, KvStore
from train.job.defaults import PYTHON, find_option
from train.job.payload import find_likely, shipped_scripts
from train.job.selection import parse_nodes

_GPUS = re.compile(r"[0-9]+(,[0-9]+)*")


class Words(Struct, frozen=True, kw_only=True):
    """The meaning of the words of the command line. command: the command that runs in place of a script; () for none.

    script: a path relative to the folder of cluster.toml, or the name of a shipped script; None: [train] script. args:
    the script's arguments; without a script, they are appended to [train] args.
    """

    command: tuple[str, ...] = ()
    script: str | None = None
    args: tuple[str, ...] = ()


def read_words(words: Sequence[str], *, is_command: bool, here: Path, project_dir: Path, folder: Path) -> Words:
    """Distinguishes a script with its arguments, arguments for [train] script, and a command.

    is_command: whether `--` precedes the words; before `python`, a shell or a launcher, it may be left out, as with
    launch.py. A `--` after the script is left out. here: the current folder. folder: where commands run.
    Raises UsageError if the script does not exist.
    """
    if not words:
        return Words()
    if not words[0].strip():  # such as a variable that is not set
        raise UsageError(
            "the first word is empty: it names neither a script nor a command", hint="cluster train SCRIPT"
        )
    if is_command or (runs_others(words[0]) and not (here / words[0]).is_file()):
        return _read_command(words, folder)
    # `own.py -- --epochs 3`, as other programs want it; a script gets a second "--".
    name, args = words[0], tuple(words[2:] if len(words) > 1 and words[1] == "--" else words[1:])
    path = here / name
    if not args and len(name.split()) > 1 and not _exists(path):
        return Words(command=as_command(words))
    if path.is_file():
        return Words(script=os.path.relpath(path.absolute(), project_dir), args=args)
    if name in shipped_scripts():
        return Words(script=name, args=args)
    if path.is_dir():
        likely = shlex.join([f"{name.rstrip('/')}/{find_likely(path)}", *args])
        raise UsageError(f"{name}: this is a folder, and not a script", hint=f"cluster train {likely}")
    raise UsageError(f"{name}: there is no such script in {here}", hint=_suggest(words, here))


def _read_command(words: Sequence[str], folder: Path) -> Words:
    """A command, options, or `python SCRIPT ARGS...` with a script that ships with this project, as guides have it."""
    if words[0].startswith("-"):
        return Words(args=tuple(words))
    if words[0] in (*shipped_scripts(), *(path.name for path in folder.glob("*.py"))):  # on no node's PATH
        raise UsageError(
            f"-- {words[0]}: after --, a script needs its interpreter", hint=f"cluster train {shlex.join(words)}"
        )
    is_python = len(words) > 1 and PYTHON.fullmatch(words[0]) is not None
    if is_python and words[1] in shipped_scripts() and not (folder / words[1]).is_file():
        return Words(script=words[1], args=tuple(words[2:]))
    return Words(command=as_command(words))


def read_store(args: Sequence[str]) -> dict[str, Any]:
    """The [train] keys that a shipped script's arguments set, as in launch.py's command lines. Pure."""
    values = {"kv_store": get_args(KvStore), "gc_type": get_args(GcType)}
    found = {key: find_option(args, f"--{key.replace('_', '-')}") for key in values}
    overrides: dict[str, Any] = {f"train.{key}": value for key, value in found.items() if value in values[key]}
    threshold = find_option(args, "--gc-threshold")
    if threshold is not None and re.fullmatch(r"[0-9]*\.?[0-9]+", threshold) is not None:
        overrides["train.gc_threshold"] = float(threshold)
    return overrides


def find_cwd(given: str | None, configured: str, *, here: Path, project_dir: Path) -> str:
    """The value of [train] cwd for a job. given: --cwd, from the current folder `here`. configured: [train] cwd.

    Raises UsageError for a folder that does not exist, or is not below project_dir.
    """
    if given is None and configured != "auto":
        folder, named = project_dir / configured, f'train.cwd = "{configured}"'
    else:
        folder, named = here / (given or "."), f"--cwd {given}"
    root = project_dir.resolve()
    if folder.resolve().is_relative_to(root):
        if folder.is_dir():
            return folder.resolve().relative_to(root).as_posix()
        raise UsageError(f"{named}: there is no such folder: {folder}", hint=f"ls {shlex.quote(str(folder.parent))}")
    if given is None and configured == "auto":
        return "."
    raise UsageError(f"{named}: not below the folder of cluster.toml, {project_dir}", hint="cluster train --cwd .")


def check_script(command: Sequence[str], *, folder: Path) -> None:
    """Raises UsageError for `python SCRIPT` without that script in the folder where it runs.

    An absolute path is the nodes' or the image's.
    """
    script = command[1] if len(command) > 1 and runs_others(command[0]) else ""
    if script.endswith(".py") and not script.startswith("/") and not (folder / script).is_file():
        raise UsageError(f"{script}: there is no such script in {folder}", hint=_suggest(command[1:], folder))


def _suggest(words: Sequence[str], here: Path) -> str:
    """Returns the hint for a first word that is not a script: the command that the user may have meant."""
    if (here / f"{words[0]}.py").is_file():
        return f"cluster train {shlex.join([f'{words[0]}.py', *words[1:]])}"
    if not words[0].endswith(".py") and "/" not in words[0]:
        return f"a command follows --: cluster train -- {shlex.join(words)}"
    scripts = {*here.glob("*.py"), *(here / words[0]).parent.glob("*.py")}
    known = [*sorted(os.path.relpath(path, here) for path in scripts), *shipped_scripts()]
    near = difflib.get_close_matches(words[0], known, n=1, cutoff=0.75)  # train.py is not train_mnist.py
    return f"cluster train {near[0]}" if near else f"one of: {', '.join(known)}"


class TrainRequest(Struct, frozen=True, kw_only=True):
    """The request that a command line makes.

    overrides: values by dotted key, for App.overrides: those of the job file, overridden by those of the command line.
    command: the words after --, as returned by `as_command`, or otherwise the job file's command; (): [train] script
    runs. hidden: by key (env, env_server, env_worker), the variables whose values come from this machine's environment.
    Whatever their names, the values may be secrets, and are never shown. replaced: a launcher's words that the job's
    own launcher replaces, or "".
    """

    overrides: Mapping[str, Any]
    command: tuple[str, ...]
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: str = ""


def read(options: Mapping[str, Any], command: Sequence[str]) -> TrainRequest:
    """Returns the request that the options make. command: the command that runs in place of a script.

    Reads the job file, the hostfile and the environment. Raises UsageError, ConfigError for a mistake in the job file.
    """
    of_file: dict[str, Any] = {}
    words = tuple(command)
    if options["job"] is not None:
        of_file, of_command = load_job_file(options["job"])
        words = words or of_command
    plain = ("workers", "servers", "launcher", "kv_store", "gc_type", "gc_threshold", "sync_dst_dir", "name")
    given = {key: options[key] for key in plain if options[key] is not None}
    given |= {key: True for key in ("p3", "queue") if options[key]}
    if options["hostfile"] is not None:
        given["hosts"] = read_host_list(options["hostfile"], os.environ)
        given["nodes"] = "current"
    if options["image"] is not None:
        of_file["container.image"] = options["image"]
    if options["nodes"] is not None:
        given = {"hosts": [], **given, "nodes": parse_nodes(options["nodes"])}
    if options["workers"] is not None:
        given["processes"] = "auto"
    if options["gpus"] is not None:
        given["gpus"] = parse_gpus(options["gpus"])
    if options["max_duration"] is not None:
        text = options["max_duration"]
        given["max_duration"] = int(text) if text.isdecimal() else text
    hidden: dict[str, tuple[str, ...]] = {}
    for key in ENVIRONMENTS:
        if options[key]:
            option = f"--{key.replace('_', '-')}"
            variables = dict(parse_variable(word, option=option, here=os.environ) for word in options[key])
            given[key] = {**of_file.get(f"train.{key}", {}), **variables}
            hidden[key] = find_hidden(options[key])
    overrides = {**of_file, **{f"train.{key}": value for key, value in given.items()}}
    return TrainRequest(overrides=overrides, command=words, hidden=hidden)


def find_hidden(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the variables given as NAME, without =VALUE. For each variable, its last word counts. Pure."""
    is_typed = {word.partition("=")[0]: "=" in word for word in words}
    return tuple(name for name, typed in is_typed.items() if not typed)


def as_command(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that the words after `cluster train` mean.

    A single word with blanks, such as "python my.py --lr 0.1", is a line for the shell, as with launch.py, unless it is
    the name of a file that contains blanks.
    """
    if len(words) == 1 and len(words[0].split()) > 1 and not _exists(Path(words[0])):
        return (*SHELL, words[0])
    return tuple(words)


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder. A line for the shell may be too long for a name."""
    try:
        return path.exists()
    except OSError:
        return False


def parse_variable(word: str, *, option: str, here: Mapping[str, str]) -> tuple[str, str]:
    """Returns name and value from "NAME=VALUE", or from a NAME whose value is in `here`, this machine's environment.

    Pure. Raises UsageError, with a hint for launch.py's NAME:VALUE.
    """
    name, equals, value = word.partition("=")
    is_name = re.fullmatch(ENV_NAME_PATTERN, name) is not None
    if is_name and equals:
        return name, value
    if is_name and name in here:  # keeps the value out of process lists
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
    message = f'{option} "{before}=..."' if value.strip("=") else option  # base64 may end with =
    raise UsageError(f"{message}: must be NAME=VALUE or NAME, a name of letters A to Z, digits and _")


def parse_gpus(text: str) -> str | list[int]:
    """Returns the value of [train] gpus for a value of --gpus. Pure. Raises UsageError."""
    if text in ("auto", "none"):
        return text
    if _GPUS.fullmatch(text) is None:
        message = f'--gpus "{text}": must be numbers with commas between them, "auto" or "none"'
        raise UsageError(message, hint="cluster train --gpus 0,1")
    return [int(number) for number in text.split(",")]
