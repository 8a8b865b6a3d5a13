"""Launchers in a command, such as torchrun and mpirun: the job's own launcher does what their words ask. Pure.

Run as they are, they would start one separate job in each process of the job. An option that has no equivalent is
refused. A shell line that uses a launcher is refused too, unless it passes on the place of its process.
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct, field

from foundation.errors import UsageError
from train.job.defaults import PYTHON, SHELL_NAME, find_line

# What options mean, with an = for each value that they take: the names of the options, without dashes.
Options = Mapping[str, str]
_RENDEZVOUS = """node-rank rdzv-backend rdzv-endpoint rdzv-id rdzv-conf master-addr master-port local-addr
    monitor-interval start-method role log-dir redirects r tee t local-ranks-filter"""  # a job does this by itself
_PYTHON_OPTIONS = {"module": "m module", "no Python": "no-python", "help": "h help version"}
_TORCHRUN: Options = _PYTHON_OPTIONS | {
    "processes=": "nproc-per-node",
    "nodes=": "nnodes",
    "one node": "standalone",
    "restarts=": "max-restarts",
    "dropped=": _RENDEZVOUS,
    "no rank": "use-env",
}
_ACCELERATE: Options = _PYTHON_OPTIONS | {
    "workers=": "num-processes",
    "nodes=": "num-machines",
    "cpu": "cpu",
    "ACCELERATE_MIXED_PRECISION=": "mixed-precision",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=": "gradient-accumulation-steps",
    "OMP_NUM_THREADS=": "num-cpu-threads-per-process",
    "dropped": "multi-gpu same-network quiet q",
    "dropped=": f"machine-rank main-process-ip main-process-port {_RENDEZVOUS}",
}
_DEEPSPEED: Options = _PYTHON_OPTIONS | {
    "processes=": "num-gpus",
    "nodes=": "num-nodes",
    "no rank": "no-local-rank",
    "dropped=": "master-addr master-port launcher node-rank",
}
_MPIRUN: Options = {
    "workers=": "np n c",
    "variable=": "x",
    "help": "h help version",
    "dropped": "allow-run-as-root oversubscribe tag-output q quiet v verbose gloo mpi",
    "dropped=": "bind-to map-by network-interface",
    "dropped==": "mca",
}
_PROGRAMS: Mapping[tuple[str, ...], Options] = {
    ("torchrun",): _TORCHRUN,
    ("deepspeed",): _DEEPSPEED,
    ("accelerate", "launch"): _ACCELERATE,
    ("accelerate-launch",): _ACCELERATE,
    **{(name,): _MPIRUN for name in ("mpirun", "mpiexec", "orterun", "mpirun.openmpi", "horovodrun")},
    ("-m", "torch.distributed.run"): _TORCHRUN,
    ("-m", "torch.distributed.launch"): _TORCHRUN,
    ("-m", "accelerate.commands.launch"): _ACCELERATE,
}
_ADD_RANK = {"deepspeed": "--local_rank", "torch.distributed.launch": "--local-rank"}
"""The option with the local rank that these launchers add to a script's arguments."""
NAMES = frozenset(own[0] for own in _PROGRAMS) - {"-m"}
_OF_MACHINE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that `mpirun -x` passes on from this machine, and that the nodes have values of their own for."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OF_SHELLS = re.compile(r"[;&|<>$`(){}*?~#!\n\\]")
_IN_LINE = re.compile(
    r"(?:^|[;&|({\n]|(?<![\w-])(?:exec|time|\w+=\S*)\s)\s*(?:\S*/)?((?:python[0-9.]*(?:\s+-u)?\s+(?=-m))?"
    rf"(?:{'|'.join(re.escape(' '.join(own)) for own in _PROGRAMS)}))\s".replace(r"\ ", r"\s+")
)
_NODE_RANK = re.compile(r"(node|machine)[_-]rank[= ]+[\"']?\$")
"""A shell line that tells its launcher which process of the job it is."""


class Replacement(Struct, frozen=True, kw_only=True):
    """What runs in place of a command with a launcher.

    settings: keys of [train]; env adds to that of the job. words: those of the launcher that are replaced.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""


def replace_launcher(command: Sequence[str], *, launcher: str) -> Replacement | None:
    """Translates a launcher's words into a job's settings; None for a command without a launcher.

    launcher: the name of the engine that the job would use. Raises UsageError for words that have no equivalent.
    """
    line = find_line(command)
    if line is not None:
        try:
            command = () if _OF_SHELLS.search(line) else shlex.split(line)
        except ValueError:  # bash reports it
            return None
    at = 1 if command and command[0] == "env" else 0
    while at < len(command) and _ASSIGNMENT.fullmatch(command[at]):
        at += 1
    found = _find_launcher(command[at:])
    if found is None:
        if line is not None:
            _check_line(line)
        return None
    name, size, options = found
    python = command[at] if PYTHON.fullmatch(_base(command[at])) else "python"
    parsed = _make_parser(name, options).parse_args(command[at + size :])
    program: list[str] = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not program or parsed.help:
        return None
    given = {meaning: values[-1] for meaning, values in vars(parsed).items() if values and meaning != "program"}
    is_mpi = options is _MPIRUN
    if is_mpi and ":" in program:
        raise _refusal(name, ":", is_mpi=True)
    settings = dict(_find_settings(name, given))
    env = dict(_find_variables(name, vars(parsed)))
    if is_mpi:
        settings |= {"launcher": "mpi", "kv_store": "none"}
    elif launcher not in ("torchrun", "env"):
        settings["launcher"] = "env"
    assigned = tuple(word for word in command[:at] if word != "env")
    own = program if is_mpi or "no Python" in given else _run_by_python(python, name, program, given)
    return Replacement(
        command=(*(("env", *assigned) if assigned else ()), *own),
        settings=settings | ({"env": env} if env else {}),
        words=shlex.join(command[at : len(command) - len(program)]),
    )


def runs_others(word: str) -> bool:
    """Whether a word names a program that runs other programs or scripts: Python, a shell or a launcher. Pure."""
    name = _base(word)
    return name in (*NAMES, "env") or bool(PYTHON.fullmatch(name) or SHELL_NAME.fullmatch(name))


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _check_line(line: str) -> None:
    found = _IN_LINE.search(line)
    if found is None or _NODE_RANK.search(line):
        return
    name = " ".join(found[1].split())
    raise UsageError(
        f"{name} inside a shell line would start a separate job in each process of this job",
        hint=f"cluster train --cwd FOLDER -- {name} ..., without a shell: the job's own launcher replaces {name}",
    )


def _find_launcher(words: Sequence[str]) -> tuple[str, int, Options] | None:
    """The launcher's name, the number of its own words, and its options."""
    first = _base(words[0]) if words else ""
    skipped = 0 if not PYTHON.fullmatch(first) else 2 if "-u" in words[1:2] else 1
    named = tuple(words[skipped:]) if skipped else (first, *words[1:])
    for own, options in _PROGRAMS.items():
        if named[: len(own)] == own and bool(skipped) == (own[0] == "-m"):
            return " ".join(own[1:] if skipped else own), skipped + len(own), options
    return None


class _Parser(argparse.ArgumentParser):
    """Refuses options that are not listed."""

    def error(self, message: str) -> NoReturn:
        option = next((word for word in message.split() if word.startswith("-")), message)
        raise _refusal(self.prog, option.partition("=")[0].rstrip(":"), is_mpi=_PROGRAMS.get((self.prog,)) is _MPIRUN)


def _make_parser(name: str, options: Options) -> _Parser:
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    parser.set_defaults(help=None)
    for listed, names in options.items():
        meaning = listed.rstrip("=")
        for option in names.split():
            forms = dict.fromkeys((f"-{option}", f"--{option}", f"--{option.replace('-', '_')}"))
            values = len(listed) - len(meaning)
            if values:
                parser.add_argument(*forms, dest=meaning, action="append", nargs=None if values == 1 else values)
            else:
                parser.add_argument(*forms, dest=meaning, action="append_const", const=True)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def _refusal(name: str, option: str, *, is_mpi: bool) -> UsageError:
    form = "[-H FILE] --launcher mpi --kv-store none -n N -- PROGRAM" if is_mpi else "-- python SCRIPT"
    return UsageError(
        f"{name} {option}: a job starts its processes itself, and has no equivalent of this option",
        hint=f"cluster train {form}",
    )


def _find_settings(name: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of [train] that options stand for. Values such as $N, of another cluster's scheduler, are ignored."""
    for meaning, value in given.items():
        if meaning == "one node":
            yield "nodes", 1
        elif not isinstance(value, str) or value.startswith("$"):
            continue
        elif meaning == "processes" and value == "cpu":
            raise _refusal(name, "--nproc_per_node=cpu", is_mpi=False)
        elif meaning == "processes":
            yield from (("processes", _read_number(name, value) if value.isdecimal() else "auto"), ("workers", "auto"))
        elif meaning == "workers":
            yield from (("workers", _read_number(name, value)), ("processes", "auto"))
        elif meaning == "nodes":
            fewest, colon, _ = value.partition(":")
            number = _read_number(name, fewest)
            yield "nodes", f"{number}.." if colon else number
        elif meaning == "restarts" and value != "0":
            yield "restarts_on_error", _read_number(name, value)


def _read_number(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise UsageError(f'{name}: "{value}" is not a number of processes or nodes')
    return int(value)


def _find_variables(name: str, parsed: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The environment variables that options stand for, or set."""
    if parsed.get("cpu"):
        yield "ACCELERATE_USE_CPU", "true"
    yield from ((meaning, values[-1]) for meaning, values in parsed.items() if values and meaning.isupper())
    for word in parsed.get("variable") or ():
        variable, equals, value = word.partition("=")
        if equals:
            yield variable, value
        elif variable not in _OF_MACHINE:
            raise UsageError(
                f"{name} -x {variable}: the value is not in the command",
                hint=f"cluster train --env {variable} -- {name} ..., without -x {variable}",
            )


def _run_by_python(python: str, name: str, program: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
    """The command of each process for a Python script or module."""
    module = ("-m",) if "module" in given else ()
    option = _ADD_RANK.get(name) if "no rank" not in given else None
    rank = (f"{option}=$CLUSTER_LOCAL_RANK",) if option else ()
    return (python, *module, program[0], *rank, *program[1:])
