"""Python versions on nodes: 3.10 in the runtime; older for programs that run without it, or in users' Pythons."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from bootstrap.runtime.code import CODE
from node import protocol, wire
from project import REPOSITORY

IMPORTED = [path for path in sorted((REPOSITORY / "mxnet_cluster").glob("*.py")) if path.stem != "__init__"]
SETUP = REPOSITORY / "node" / "setup"
# Without the runtime: the agent, which places it; and what runs in users' Pythons and images.
WITHOUT = ("agent", "chain", "place_tree", "store", "urls")
INSIDE = ("containers/site/sitecustomize", "startup/_cluster_compat")
BOOTSTRAP = sorted([*(SETUP / f"{name}.py" for name in (*WITHOUT, *INSIDE)), *SETUP.glob("probes/*.py")])
SHIM = REPOSITORY / "node" / "agent" / "shim.py"
OF_JUPYTER = [REPOSITORY / "node" / "notebook" / "jupyter_server_config.py"]
OF_RUNTIME = sorted(
    path
    for name in CODE
    if "scripts" not in name and name != "mxnet_cluster"
    for path in ([REPOSITORY / name] if (REPOSITORY / name).is_file() else (REPOSITORY / name).rglob("*.py"))
    if path.suffix == ".py" and path not in {*BOOTSTRAP, SHIM, *OF_JUPYTER}
)
OTHER_PACKAGES = ("msgspec", "obstore", "psutil", "pynvml", "mxnet", "numpy", "torch", "dmlc_tracker", "isal")
ENVIRONMENT = {*OTHER_PACKAGES, "networks", "train", "node", "foundation", "sitecustomize"}


def imported_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def unions_in(path: Path) -> list[int]:
    """The numbers of lines with types like `str | None`, which Python 3.9 cannot evaluate."""
    tree = ast.parse(path.read_text())
    if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        return []
    given = [node.annotation for node in ast.walk(tree) if isinstance(node, (ast.AnnAssign, ast.arg))]
    given += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = [part for found in given if found is not None for part in ast.walk(found)]
    return [part.lineno for part in inner if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr)]


@pytest.mark.parametrize(
    ("paths", "oldest", "known"),
    [
        pytest.param(
            [*BOOTSTRAP, SHIM],
            (3, 6),
            {*(path.stem for path in BOOTSTRAP), "mxnet", "numpy", "torch"},
            id="outside the runtime",
        ),
        pytest.param(IMPORTED, (3, 9), {"mxnet_cluster", "s3fs", "botocore", "_typeshed"}, id="imported by users"),
        pytest.param(OF_JUPYTER, (3, 9), {"jupyter_server"}, id="in JupyterLab"),  # 3.8, which ignores annotations
        pytest.param(OF_RUNTIME, (3, 10), ENVIRONMENT, id="runtime"),
    ],
)
def test_programs_need_no_newer_python_and_no_other_packages(
    paths: list[Path], oldest: tuple[int, int], known: set[str]
) -> None:
    for path in paths:
        assert imported_by(path) <= {*sys.stdlib_module_names, *known}, path
        assert oldest >= (3, 10) or unions_in(path) == [], path
    words = ["--target={}.{}-".format(*oldest), "--violations", "--no-tips", "--quiet", "--eval-annotations"]
    words += ["--no-parse-comments", "--processes=1"]  # which takes half the time
    done = subprocess.run(
        [Path(sys.executable).parent / "vermin", *words, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def has_quoted_part(kind: Any) -> bool:
    """Whether a type has a name in quotes within [...], such as `tuple["Attempt", ...]`."""
    parts = {Literal: (), Annotated: get_args(kind)[:1]}.get(get_origin(kind), get_args(kind))
    return any(isinstance(part, str) or has_quoted_part(part) for part in parts)


def test_messages_can_be_decoded_by_python_3_10() -> None:
    """It resolves no names in quotes within [...]: no job would start on Ubuntu 22.04."""
    kinds = [kind for module in (protocol, wire) for kind in vars(module).values() if isinstance(kind, type)]
    fields = [(kind, name, of) for kind in kinds for name, of in getattr(kind, "__annotations__", {}).items()]
    assert len(fields) > 100
    assert [(kind, name) for kind, name, of in fields if has_quoted_part(of)] == []
