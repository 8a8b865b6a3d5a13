"""How the packages import each other: imports lead only downwards, and there is no cycle."""

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from project import REPOSITORY

BELOW = {
    "cluster": {"train", "bootstrap", "provision", "node", "foundation", "ec2_sandbox", "mxnet_cluster"},
    "train": {"bootstrap", "provision", "node", "foundation", "mxnet_cluster"},
    "bootstrap": {"provision", "node", "foundation", "mxnet_cluster"},
    "provision": {"node", "foundation"},
    "node": {"foundation"},
    "ec2_sandbox": set(),  # a distribution of its own
    "foundation": {"mxnet_cluster"},
    "mxnet_cluster": {"cluster"},  # only in its main, which starts the command
}
RUN_BY_PATH = (
    "train/scripts/",
    "node/setup/",
)  # programs on the nodes, or for MXNet's or PyTorch's Python
MOST_FILES = 18  # per folder
MOST_LINES = 500  # per file
ONLY_IN = {"fabric": "bootstrap/ssh/", "rich": "cluster/"}


def folder_of(package: str) -> Path:
    return REPOSITORY / "sandbox" / package if package == "ec2_sandbox" else REPOSITORY / package


def name_of(path: Path, package: str) -> str:
    return ".".join(path.relative_to(folder_of(package).parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {
    name_of(path, package): path
    for package in BELOW
    for path in sorted(folder_of(package).rglob("*.py"))
    if not path.relative_to(REPOSITORY).as_posix().startswith(RUN_BY_PATH)
}


@cache
def parse_all() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in FILES.items()}


@cache
def imports_of(name: str, *, everywhere: bool) -> frozenset[str]:
    return frozenset(find_imports(parse_all()[name], FILES, everywhere=everywhere))


def find_imports(node: ast.AST, known: Mapping[str, object], *, everywhere: bool) -> Iterator[str]:
    """Yields the names of imported modules. A module in `known` counts under its own name.

    everywhere: whether to include imports in functions and those for types.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            for alias in child.names:
                below = f"{child.module}.{alias.name}"
                yield below if below in known else child.module
        elif not isinstance(child, ast.expr) and (
            everywhere
            or not (
                isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            )
        ):
            yield from find_imports(child, known, everywhere=everywhere)


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = {name: {found for found in imports_of(name, everywhere=False) if found in FILES} - {name} for name in FILES}
    assert any("." in found for found in graph["cluster.app"])  # find_imports works
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    wrong = {
        f"{name} imports {found}"
        for name in FILES
        if name.split(".")[0] == package
        for found in imports_of(name, everywhere=True)
        if (top := found.split(".")[0]) in BELOW and top != package and top not in BELOW[package]
    }
    assert wrong == set()


def test_threads_decode_by_foundation_decode() -> None:
    """msgspec's own functions crash if several threads use a type for the first time at once."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in parse_all().items()
        # The settings are read in the main thread.
        if name not in {"foundation.decode", "foundation.settings", "ec2_sandbox.cli.settings"}
        if "msgspec" in FILES[name].read_text()  # to walk all files takes a second
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in {"convert", "decode"}
            and ast.unparse(node) in {"msgspec.convert", "msgspec.json.decode"}
        )
        or (
            isinstance(node, ast.ImportFrom)
            and str(node.module).startswith("msgspec")
            and {"convert", "decode"} & {alias.name for alias in node.names}
        )
    ]
    assert found == []


@pytest.mark.parametrize(("library", "folder"), ONLY_IN.items())
def test_a_library_is_imported_in_one_place(library: str, folder: str) -> None:
    importing = {
        FILES[name].relative_to(REPOSITORY).as_posix()
        for name in FILES
        if any(found.split(".")[0] == library for found in imports_of(name, everywhere=True))
    }
    assert importing
    assert {path for path in importing if not path.startswith(folder)} == set()


def test_no_folder_has_too_many_files() -> None:
    folders = {path.parent for package in BELOW for path in folder_of(package).rglob("*.py")}
    large = {
        folder.relative_to(REPOSITORY).as_posix() for folder in folders if len(list(folder.glob("*.py"))) > MOST_FILES
    }
    assert large == set()


def test_no_file_is_too_long() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count >= MOST_LINES} == {}


# -- docs/architecture.md ---------------------------------------------------------------------------------------------

DOCUMENT = (REPOSITORY / "docs" / "architecture.md").read_text()
PATH = re.compile(r"`((?:cluster|train|bootstrap|provision|node|foundation|sandbox|docs|tests)/[\w/.-]*)`")
STEP = re.compile(r"^\d+\. `([\w/.]+)`:(.*(?:\n   .*)*)", re.MULTILINE)
FLOWS = DOCUMENT.partition("## Three flows")[2].partition("## What is stored")[0]
ORDER = ["cluster", "train", "bootstrap", "provision", "node"]


def test_the_document_names_files_that_are_there() -> None:
    named = set(PATH.findall(DOCUMENT)) | {path for path, _ in STEP.findall(DOCUMENT)}
    assert len(named) > 40
    assert {path for path in named if not (REPOSITORY / path).exists()} == set()


def test_what_a_step_of_a_list_names_is_in_its_file() -> None:
    steps = STEP.findall(DOCUMENT)
    assert len(steps) > 30
    missing = {
        (path, name)
        for path, text in steps
        for name in re.findall(r"`([\w.]+)`", text)
        if (REPOSITORY / path).is_file() and name.rpartition(".")[2] not in (REPOSITORY / path).read_text()
    }
    assert missing == set()


@pytest.mark.parametrize("flow", [block for block in FLOWS.split("\n\n") if STEP.search(block)])
def test_a_flow_has_eight_files_at_most_and_goes_downwards(flow: str) -> None:
    paths = [path for path, _ in STEP.findall(flow)]
    assert 5 <= len(paths) <= 8
    packages = [ORDER.index(path.partition("/")[0]) for path in paths]
    assert packages == sorted(packages)


def test_an_addition_takes_three_files_at_most() -> None:
    lists = [block for block in DOCUMENT.partition("## How to add")[2].split("\n\n") if STEP.search(block)]
    assert len(lists) >= 6
    assert [block for block in lists if len(STEP.findall(block)) > 3] == []


def test_the_document_has_every_package_and_its_folders() -> None:
    picture = DOCUMENT.partition("## Packages")[2].partition("\n`describe_*`")[0]
    for package in BELOW:
        assert f"{package}/" in picture
    for package in ("train", "bootstrap", "provision", "node"):
        folders = {path.name for path in (REPOSITORY / package).iterdir() if list(path.glob("*.py"))}
        assert {name for name in folders if f"{name}/" not in picture} == set()
