"""Launchers in a command, such as torchrun and mpirun: the job's own launcher does what their words ask. Pure.

Run as they are, they would start one separate job in each process of the job. An option that has no equivalent is
refused. A shell line that uses a launcher is refused too, unless it passes on the place of its process.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foundation.errors import UsageError

DROPPED, REFUSED = "dropped", "refused"
Options = Mapping[str, str]
"""What each option means, with an = for each value that it takes."""


def _options(kinds: Mapping[str, str]) -> Options:
    return {name: meaning for meaning, names in kinds.items() for name in names.split()}


_RENDEZVOUS = """node-rank rdzv-backend rdzv-endpoint rdzv-id rdzv-conf master-addr master-port local-addr
    monitor-interval start-method role log-dir redirects r tee t local-ranks-filter"""  # a job does this by itself
_PYTHON_OPTIONS = {"module": "m module", "program": "no-python"}
_TORCHRUN = _options(
    _PYTHON_OPTIONS
    | {
        "processes=": "nproc-per-node",
        "nodes=": "nnodes",
        "one node": "standalone",
        "restarts=": "max-restarts",
        "dropped=": _RENDEZVOUS,
        "no rank": "use-env",
    }
)
_ACCELERATE = _options(
    _PYTHON_OPTIONS
    | {
        "workers=": "num-processes",
        "nodes=": "num-machines",
        "variable ACCELERATE_USE_CPU=true": "cpu",
        "variable ACCELERATE_MIXED_PRECISION==": "mixed-precision",
        "variable ACCELERATE_GRADIENT_ACCUMULATION_STEPS==": "gradient-accumulation-steps",
        "variable OMP_NUM_THREADS==": "num-cpu-threads-per-process",
        "dropped": "multi-gpu same-network quiet q",
        "dropped=": f"machine-rank main-process-ip main-process-port {_RENDEZVOUS}",
        "refused=": "config-file gpu-ids dynamo-backend",
    }
)
_DEEPSPEED = _options(
    _PYTHON_OPTIONS
    | {
        "processes=": "num-gpus",
        "nodes=": "num-nodes",
        "no rank": "no-local-rank",
        "dropped=": "master-addr master-port launcher node-rank",
        "refused=": "hostfile H include i exclude e",
    }
)
_MPIRUN = _options(
    {
        "workers=": "np n c",
        "variable =": "x",
        "dropped": "allow-run-as-root oversubscribe tag-output q quiet v verbose gloo mpi",
        "dropped=": "bind-to map-by network-interface",
        "dropped==": "mca",
        "refused=": "H host hosts hostfile machinefile wdir wd",
    }
)
_PROGRAMS = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate-launch": _ACCELERATE,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "mpirun.openmpi", "horovodrun"), _MPIRUN),
}
_MODULES = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate.commands.launch": _ACCELERATE,
}
_ADD_RANK = {"deepspeed": "--local_rank", "torch.distributed.launch": "--local-rank"}
"""The option with the local rank that these launchers add to a script's arguments."""
NAMES = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "orterun", "horovodrun")
_OF_MACHINE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that `mpirun -x` passes on from this machine, and that the nodes have values of their own for."""
_PYTHON = re.compile(r"python[0-9.]*")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OF_SHELLS = re.compile(r"[;&|<>$`(){}*?~#!\n\\]")
_IN_LINE = re.compile(
    r"(?:^|[;&|({\n]|\bexec|\btime|\b\w+=\S*)\s*(?:\S*/)?(torchrun|deepspeed|accelerate\s+launch|mpirun|mpiexec|horovodrun"
    r"|python[0-9.]*(?:\s+-u)?\s+-m\s+torch\.distributed\.(?:run|launch))\s"
)
_PLACE = re.compile(r"(node|machine)[_-]rank[= ]+[\"']?\$")
"""A shell line that tells its launcher which process of the job it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
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
    line = _find_line(command)
    if line is not None:
        if _OF_SHELLS.search(line):
            _check_line(line)
            return None
        try:
            command = shlex.split(line)
        except ValueError:  # bash reports it
            return None
    at = 1 if command and command[0] == "env" else 0
    while at < len(command) and _ASSIGNMENT.fullmatch(command[at]):
        at += 1
    found = _find_launcher(command[at:])
    if found is None:
        return None
    name, size, options = found
    own = list(command[at : at + size])
    reader = _Reader(name, options, python=own[0] if _PYTHON.fullmatch(_base(own[0])) else "python")
    taken = reader.read(command[at + size :])
    if not reader.program:
        return None  # such as `torchrun --help`
    assigned = tuple(word for word in command[:at] if word != "env")
    return Replacement(
        command=(*(("env", *assigned) if assigned else ()), *reader.make_command()),
        settings=reader.make_settings(launcher),
        words=shlex.join([*own, *command[at + size : at + size + taken]]),
    )


def runs_others(word: str) -> bool:
    """Whether a word names a program that runs other programs or scripts: Python, a shell or a launcher. Pure."""
    name = _base(word)
    return name in (*NAMES, "env") or bool(_PYTHON.fullmatch(name) or _SHELL.fullmatch(name))


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _find_line(command: Sequence[str]) -> str | None:
    """The shell line of `bash -c LINE`."""
    is_line = len(command) == 3 and _SHELL.fullmatch(_base(command[0])) and re.fullmatch(r"-[a-z]*c", command[1])
    return command[2] if is_line else None


def _check_line(line: str) -> None:
    found = _IN_LINE.search(line)
    if found is None or _PLACE.search(line):
        return
    name = " ".join(found[1].split())
    raise UsageError(
        f"{name} inside a shell line would start a separate job in each process of this job",
        hint=f"cluster train --cwd FOLDER -- {name} ..., without a shell: the job's own launcher replaces {name}",
    )


def _find_launcher(words: Sequence[str]) -> tuple[str, int, Options] | None:
    """The launcher's name, the number of its own words, and its options."""
    if not words:
        return None
    first = _base(words[0])
    if first in _PROGRAMS:
        return first, 1, _PROGRAMS[first]
    if first == "accelerate" and tuple(words[1:2]) == ("launch",):
        return "accelerate launch", 2, _ACCELERATE
    if _PYTHON.fullmatch(first):
        at = 2 if tuple(words[1:2]) == ("-u",) else 1
        if tuple(words[at : at + 1]) == ("-m",) and len(words) > at + 1 and words[at + 1] in _MODULES:
            return words[at + 1], at + 2, _MODULES[words[at + 1]]
    return None


class _Reader:
    """Reads a launcher's options and its program."""

    def __init__(self, name: str, options: Options, *, python: str) -> None:
        self.name, self._options, self._python = name, options, python
        self.program: tuple[str, ...] = ()
        self._settings: dict[str, Any] = {}
        self._env: dict[str, str] = {}
        self._is_module = self._is_program = self._is_one_node = False
        self._adds_rank = True
        self._is_mpi = options is _MPIRUN
        self._values: Mapping[str, Callable[[str], None]] = {
            "processes": self._read_processes,
            "workers": self._read_workers,
            "nodes": self._read_nodes,
            "restarts": self._read_restarts,
        }

    def read(self, words: Sequence[str]) -> int:
        """Reads the words after the launcher's own. Returns the number of options' words. Raises UsageError."""
        at = 0
        while at < len(words) and words[at].startswith("-"):
            option, equals, value = words[at].partition("=")
            if option == "--":
                at += 1
                break
            meaning = self._options.get(option.lstrip("-").replace("_", "-"))
            if meaning is None:
                if option in ("-h", "--help", "--version"):
                    return at
                raise self.refusal(option, words[at + 1 :])
            kind = meaning.rstrip("=") if not meaning.startswith("variable ") else meaning.removesuffix("=")
            count = len(meaning) - len(kind)
            if count and not equals:
                value = " ".join(words[at + 1 : at + 1 + count])
                at += count
            at += 1
            if kind == REFUSED:
                raise self.refusal(option, words[at:])
            self._note(option, kind, value)
        self.program = tuple(words[at:])
        if self._is_mpi and ":" in self.program:
            raise self.refusal(":", ())
        return at

    def refusal(self, option: str, rest: Sequence[str]) -> UsageError:
        """The error for an option without an equivalent. rest: the words after it."""
        program = shlex.join(rest) if rest and not rest[0].startswith("-") else "SCRIPT"
        form = program if self._is_mpi else f"python {program}"
        more = "--launcher mpi --kv-store none -n N " if self._is_mpi else ""
        return UsageError(
            f"{self.name} {option}: a job starts its processes itself, and has no equivalent of this option",
            hint=f"cluster train {more}-- {form}",
        )

    def _note(self, option: str, meaning: str, value: str) -> None:
        if meaning in self._values:
            if not value.startswith("$"):  # a variable of another cluster's scheduler
                self._values[meaning](value)
        elif meaning.startswith("variable "):
            name, equals, given = f"{meaning.removeprefix('variable ')}{value}".partition("=")
            if equals:
                self._env[name] = given
            elif name not in _OF_MACHINE:
                raise UsageError(
                    f"{self.name} {option} {name}: the value is not in the command",
                    hint=f"cluster train --env {name} -- {self.name} ..., without {option} {name}",
                )
        elif meaning == "module":
            self._is_module = True
        elif meaning == "program":
            self._is_program = True
        elif meaning == "one node":
            self._is_one_node = True
        elif meaning == "no rank":
            self._adds_rank = False

    def _read_processes(self, value: str) -> None:
        if value == "cpu":
            raise self.refusal("--nproc_per_node=cpu", ())
        self._settings["processes"] = self._read_number(value) if value.isdecimal() else "auto"
        self._settings["workers"] = "auto"

    def _read_workers(self, value: str) -> None:
        self._settings |= {"workers": self._read_number(value), "processes": "auto"}

    def _read_nodes(self, value: str) -> None:
        fewest, colon, _ = value.partition(":")
        number = self._read_number(fewest)
        self._settings["nodes"] = f"{number}.." if colon else number

    def _read_restarts(self, value: str) -> None:
        if int(value or 0):
            self._settings["restarts_on_error"] = self._read_number(value)

    def _read_number(self, value: str) -> int:
        if not value.isdecimal() or not int(value):
            raise UsageError(f'{self.name}: "{value}" is not a number of processes or nodes')
        return int(value)

    def make_command(self) -> tuple[str, ...]:
        """The command of each process."""
        if self._is_mpi or self._is_program:
            return self.program
        module = ("-m",) if self._is_module else ()
        option = _ADD_RANK.get(self.name) if self._adds_rank else None
        rank = (f"{option}=$CLUSTER_LOCAL_RANK",) if option else ()
        return (self._python, *module, self.program[0], *rank, *self.program[1:])

    def make_settings(self, launcher: str) -> dict[str, Any]:
        """The keys of [train]. launcher: the engine's name."""
        made = dict(self._settings)
        if self._is_one_node:
            made["nodes"] = 1
        if self._is_mpi:
            made |= {"launcher": "mpi", "kv_store": "none"}
        elif launcher not in ("torchrun", "env"):
            made["launcher"] = "env"
        return made | ({"env": self._env} if self._env else {})
