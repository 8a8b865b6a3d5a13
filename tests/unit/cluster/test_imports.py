"""`cluster --help` and the shell's completion do not import modules that are slow to import."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from project import REPOSITORY

OURS = ("bootstrap", "cluster", "foundation", "node", "provision", "ec2_sandbox", "train")
MOST_IMPORTS = 15
SLOW = ("msgspec", "boto3", "paramiko", "rich")


@pytest.mark.parametrize(
    ("words", "environment"),
    [(["--help"], {}), ([], {"_CLUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "cluster st", "COMP_CWORD": "1"})],
    ids=["help", "completion of a word"],
)
def test_help_and_completion_import_only_what_they_need(words: list[str], environment: dict[str, str]) -> None:
    program = (
        "import sys; from cluster.main import cli\n"
        f"try: cli.main({words}, prog_name='cluster')\n"
        f"finally: print(*sorted(set(sys.modules) & set({SLOW!r})), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert "status" in done.stdout
    assert done.stderr.split() == []


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "cluster" / "commands").rglob("*.py")), ids=lambda path: path.stem
)
def test_a_command_imports_few_of_our_modules(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            folder = REPOSITORY / node.module.replace(".", "/")
            names = {alias.name for alias in node.names}
            found |= {f"{node.module}.{name}" if (folder / f"{name}.py").exists() else node.module for name in names}
    assert len(found) <= MOST_IMPORTS, sorted(found)
