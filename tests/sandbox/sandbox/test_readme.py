"""ec2-sandbox's README: it documents every setting and fault, and its first test runs word for word."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import fields

from ec2_sandbox.cli.commands import cli
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.faults import KINDS
from project import REPOSITORY

README = (REPOSITORY / "sandbox" / "README.md").read_text()


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(heading: str) -> list[str]:
    return [name for cell in re.findall(r"^\| (`.+?) \|", section(heading), re.MULTILINE) for name in words_in(cell)]


def words_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_setting_and_fault_is_documented() -> None:
    assert sorted(first_cells("Settings")) == sorted(field.name for field in fields(FolderSettings))
    assert sorted(first_cells("Faults")) == sorted(KINDS)


def test_commands_can_be_parsed() -> None:
    lines = [line for line in re.findall(r"^    (ec2-sandbox .+)$", README, re.MULTILINE) if "docker" not in line]
    assert len(lines) > 5
    for line in lines:
        context = cli.make_context("ec2-sandbox", shlex.split(line, comments=True)[1:])
        name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        command.make_context(name, rest, parent=context)


@pytest.mark.sandbox
def test_the_first_test_runs_word_for_word(tmp_path: Path) -> None:
    text = section("From nothing to a test of your own")
    block = text.partition("write `test_launch.py`:\n")[2].partition("\nand run it:")[0]
    (tmp_path / "test_launch.py").write_text(textwrap.dedent(block).strip() + "\n")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "test_launch.py"), cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert "2 passed" in done.stdout, f"{done.stdout}\n{done.stderr}"
