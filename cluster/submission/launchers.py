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
_TORCHRUN: Options = {
    "module": "m module",
    "processes=": "nproc-per-node",
    "nodes=": "nnodes",
    "one node": "standalone",
    "restarts=": "max-restarts",
    "dropped=": _RENDEZVOUS,
}
_ACCELERATE: Options = {
    "module": "m module",
    "workers=": "num-processes",
    "nodes=": "num-machines",
    "dropped": "multi-gpu same-network quiet q",
    "dropped=": f"machine-rank main-process-ip main-process-port {_RENDEZVOUS}",
}
_MPIRUN: Options = {
    "workers=": "np n c",
    "dropped": "allow-run-as-root oversubscribe tag-output q quiet v verbose",
    "dropped=": "bind-to map-by",
    "dropped==": "mca",
}
_PROGRAMS: Mapping[tuple[str, ...], Options] = {
    ("torchrun",): _TORCHRUN,
    ("accelerate", "launch"): _ACCELERATE,
    **{(name,): _MPIRUN for name in ("mpirun", "mpiexec", "orterun", "mpirun.openmpi")},
    ("-m", "torch.distributed.run"): _TORCHRUN,
    ("-m", "accelerate.commands.launch"): _ACCELERATE,
}
NAMES = frozenset(own[0] for own in _PROGRAMS) - {"-m"}
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

    settings: keys of [train]. words: those of the launcher that are replaced.
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
    is_mpi = options is _MPIRUN
    if not program or (is_mpi and ":" in program):
        raise _refusal(name, "".join(program and ":"), is_mpi=is_mpi)
    given = {meaning: values[-1] for meaning, values in vars(parsed).items() if values and meaning != "program"}
    settings = dict(_find_settings(name, given))
    if is_mpi:
        settings |= {"launcher": "mpi", "kv_store": "none"}
    elif launcher not in ("torchrun", "env"):
        settings["launcher"] = "env"
    assigned = tuple(word for word in command[:at] if word != "env")
    own = () if is_mpi else (python, *(("-m",) if "module" in given else ()))
    return Replacement(
        command=(*(("env", *assigned) if assigned else ()), *own, *program),
        settings=settings,
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
