"""Reads the user's own program: what runs it, the modules that it imports, and its option for kv_store."""

import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from foundation.errors import UsageError
from foundation.files import read_bounded
from train.job.defaults import KV_STORE_OPTION, PYTHON, find_folder, find_program

_TAKES_KV_STORE = re.compile(r"""["'](--kv[-_]?store)["'=]""")

_TRAINS = re.compile(r"\.backward\(")
_JOINS = re.compile(
    # Neither torch.accelerator, which names a device, nor torch.utils.data.distributed joins a process group.
    r"init_process_group|(?<!utils\.data\.)distributed|RANK|WORLD_SIZE|\baccelerate\b|accelerator\.(?:backward|prepare)"
    r"|lightning|deepspeed|horovod|mpi4py|colossalai|fairscale|megatron|fastai|ignite|composer|fabric|\bray\b|hivemind"
    r"|bagua|byteps|monarch|\brpc\b"
)

DATA_URL = "CLUSTER_DATA_URL"
_SOURCE, _FOLDER = 1, 5  # the kinds of modules that ModuleFinder knows
_SHELLS = {".sh": "sh", ".bash": "bash"}


def find_command(script: str, args: Sequence[str], *, project_dir: Path, subfolder: str = "") -> tuple[str, ...]:
    """The command that runs the user's own script, if it is a program for a shell or another interpreter.

    () for a Python script, and for one that does not exist or ships with this project. subfolder: [train] cwd.
    Raises UsageError for a notebook, and for a Python script that cannot be compiled.
    """
    path = project_dir / script
    if not path.is_file():
        return ()
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{script}: a notebook is not a script",
            hint=f"jupyter nbconvert --to script {shlex.quote(script)}, then cluster train {path.stem}.py",
        )
    interpreter = _find_interpreter(path, script)
    if not interpreter:
        check_syntax(path.read_bytes(), name=script)
        return ()
    if script.startswith("../"):
        raise UsageError(f"{script}: it is outside the folder of cluster.toml", hint="put it into that folder")
    return (*interpreter, os.path.relpath(script, subfolder or "."), *args)


def _find_interpreter(path: Path, script: str) -> tuple[str, ...]:
    """The words that run a file, by its `#!` line or its extension; () for Python. Raises UsageError."""
    with path.open("rb") as file:
        first = file.readline(200)
    if not first.startswith(b"#!"):
        shell = _SHELLS.get(path.suffix)
        return (shell,) if shell is not None else ()
    words = first[2:].decode(errors="replace").split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S"]
    if not words or PYTHON.fullmatch(words[0].rpartition("/")[2]):
        return ()
    refuse_windows_lines(first, name=script)
    return tuple(words)


def refuse_windows_lines(first: bytes, *, name: str) -> None:
    """Raises UsageError for a program whose `#!` line, the first one, ends with CR LF, as on Windows.

    Linux treats the carriage return as part of the interpreter's name, and reports that this file does not exist.
    """
    if first.startswith(b"#!") and first.endswith(b"\r\n"):
        raise UsageError(
            f"{name}, line 1: the line ends as on Windows (CR LF), and Linux cannot run the program",
            hint=f"sed -i 's/\\r$//' {shlex.quote(name)}",
        )


def check_syntax(source: bytes, *, name: str) -> None:
    """Compiles a Python script, and runs nothing. Raises UsageError with the line if it is not valid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        where, line = name, ""
        if isinstance(error, SyntaxError) and error.lineno is not None:
            where = f"{name}, line {error.lineno}"
            line = f"\n    {error.text.strip()}" if error.text else ""
        problem = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"{where}: {problem}{line}",
            hint=f"correct it; if the nodes' Python is newer than {here}, which read it here: "
            f"cluster train -- python {shlex.quote(name)}",
        ) from None


def read_program(script: str, *, command: Sequence[str], project_dir: Path, subfolder: str = "") -> str:
    """The text of the user's own Python program and of the modules that it imports from its folder; "" if it has none.

    command: the command that runs instead of [train] script, or (); in `subfolder` of project_dir, or in the folder
    that its shell line enters.
    """
    program, here = find_program(command), project_dir / subfolder / find_folder(command)
    path = project_dir / script if program is None else here / program
    if (
        program is not None
        and "-m" in " ".join(command).split()
        and (here / f"{program.replace('.', '/')}.py").is_file()
    ):
        return "\n".join(_read_modules(here / f"{program.replace('.', '/')}.py", folder=here))
    if path.suffix != ".py" or not path.is_file():
        return ""
    return "\n".join(_read_modules(path, folder=path.parent))


class _Finder(ModuleFinder):
    """As Python's own, which raises AttributeError at a package without __init__.py (a namespace package)."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        spec = PathFinder.find_spec(name, path if path is not None else self.path)
        if spec is not None and spec.loader is None:
            return None, next(iter(spec.submodule_search_locations or ())), ("", "", _FOLDER)
        try:
            return super().find_module(name, path, parent)
        except ImportError:
            if name == "__init__":
                return io.StringIO(), "", ("", "", _SOURCE)
            raise


def find_modules(path: Path, *, folder: Path) -> ModuleFinder:
    """A program's modules, and the names that are none of them. folder: the program's, where Python looks for them.

    Nothing is found if the program is for another version of Python.
    """
    finder = _Finder([str(folder)])
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, OSError):
        warnings.simplefilter("ignore")
        finder.run_script(str(path))
    return finder


def _read_modules(path: Path, *, folder: Path) -> Iterator[str]:
    """The text of a program, and of each of its modules."""
    finder = find_modules(path, folder=folder)
    files = (getattr(module, "__file__", None) or "" for module in finder.modules.values())
    for file in dict.fromkeys([str(path), *(file for file in files if file.endswith(".py"))]):
        with suppress(OSError):
            yield read_bounded(Path(file)).decode(errors="replace")


def names_data(url: str, *, program: str, words: Sequence[str]) -> bool:
    """Whether the user's own program names [data] url, by itself or as $CLUSTER_DATA_URL. Pure.

    program: its text. An unknown program, "", may name it anywhere. words: its arguments and variables, or its command.
    """
    return not program or any(name in text for text in (program, *words) for name in (DATA_URL, url.rstrip("/")))


def trains_alone(program: str) -> bool:
    """Whether a PyTorch program's text trains, and has no word of a process group, of its rank or of a library for it.

    Then several processes of it train separate models. False for an unknown program, "". Pure.
    """
    return _TRAINS.search(program) is not None and "torch" in program and _JOINS.search(program) is None


def choose_kv_store_option(option: str, program: str) -> str:
    """The option that passes kv_store to the user's own program; "" for none. Pure.

    option: [train] kv_store_option; "auto" selects the option that the program's text names. program: its text; if it
    is unknown (""), "auto" selects the option of MXNet's own examples.
    """
    if option != "auto" or not program:
        return KV_STORE_OPTION if option == "auto" else option
    found = _TAKES_KV_STORE.search(program)
    return found[1] if found is not None else ""
