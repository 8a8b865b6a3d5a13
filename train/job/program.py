"""Reads the user's own program: the modules that it imports, and its option for kv_store."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from foundation.files import read_bounded
from train.job.defaults import KV_STORE_OPTION, find_program

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+([^\n#]+)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_TAKES_KV_STORE = re.compile(r"""["'](--kv[-_]?store)["'=]""")


def read_program(script: str, *, command: Sequence[str], project_dir: Path) -> str:
    """The text of the user's own Python program and of the modules that it imports from its folder; "" if it has none.

    command: the command that runs instead of [train] script, or ().
    """
    path = project_dir / (find_program(command) or script)
    if path.suffix != ".py" or not path.is_file():
        return ""
    return "\n".join(read_modules(path, folder=path.parent))


def read_modules(path: Path, *, folder: Path) -> Iterator[str]:
    """The text of a program, and then that of each of its modules. folder: the program's, for absolute imports."""
    seen: set[Path] = set()
    left = [path]
    while left:
        path = left.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            text = read_bounded(path).decode(errors="replace")
        except OSError:
            continue
        yield text
        for base, name in _find_imports(text, at=path.parent, folder=folder):
            module = base.joinpath(*name.split("."))
            left += [module.with_suffix(".py"), module / "__init__.py"]


def _find_imports(text: str, *, at: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """(folder, dotted name) of all possible modules: "from a import b" may mean a.py and a/b.py. Pure.

    at: the folder of this file. folder: the program's, for absolute imports.
    """
    for origin, names, modules in _IMPORT.findall(text):
        for module in filter(None, (word.split()[0] for word in modules.split(",") if word.split())):
            yield folder, module
        if not origin:
            continue
        plain = origin.lstrip(".")
        dots = len(origin) - len(plain)
        base = folder if not dots else (at, *at.parents)[min(dots, len(at.parents)) - 1]
        imported = [word.split()[0] for word in names.strip("() \t\\").split(",") if word.split()]
        if plain:
            yield base, plain
        for name in imported:
            if name.isidentifier():
                yield base, f"{plain}.{name}" if plain else name


def choose_kv_store_option(option: str, program: str) -> str:
    """The option that passes kv_store to the user's own program; "" for none. Pure.

    option: [train] kv_store_option; "auto" selects the option that the program's text names. program: its text; if it
    is unknown (""), "auto" selects the option of MXNet's own examples.
    """
    if option != "auto" or not program:
        return KV_STORE_OPTION if option == "auto" else option
    found = _TAKES_KV_STORE.search(program)
    return found[1] if found is not None else ""
