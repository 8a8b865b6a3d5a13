"""train/job/program.py: the text of the user's own program."""

from pathlib import Path

import pytest

from train.job.program import choose_kv_store_option, read_program

OWN = "print('own')"


@pytest.mark.parametrize(
    ("script", "command", "text"),
    [
        ("own.py", (), OWN),
        ("train_mnist.py", (), ""),  # this script ships with the project
        ("train_mnist.py", ("python3", "-u", "own.py", "--lr", "1"), OWN),
        ("own.py", ("python", "-m", "own"), ""),
        ("own.py", ("bash", "own.py.txt"), ""),
    ],
)
def test_the_text_of_a_program(tmp_path: Path, script: str, command: tuple[str, ...], text: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own.py.txt").write_text("other")
    assert read_program(script, command=command, project_dir=tmp_path) == text


def test_a_programs_text_includes_its_own_modules(tmp_path: Path) -> None:
    files = {
        "own.py": "import os, common.fit as fit\nfrom helpers import (\n    a)\nfrom package import below\nimport own",
        "common/__init__.py": "",
        "common/fit.py": "FIT\nfrom . import data\nfrom .. import helpers\nfrom .missing import x",
        "common/data.py": "DATA",
        "helpers.py": "HELPERS",
        "package/__init__.py": "PACKAGE",
        "package/below.py": "BELOW",
        "other.py": "OTHER",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_program("own.py", command=(), project_dir=tmp_path)
    assert {word for word in ("FIT", "DATA", "HELPERS", "PACKAGE", "BELOW", "OTHER") if word in found} == {
        "FIT",
        "DATA",
        "HELPERS",
        "PACKAGE",
        "BELOW",
    }
    assert found.count("HELPERS") == 1


@pytest.mark.parametrize(
    ("option", "program", "chosen"),
    [
        ("auto", "parser.add_argument('--kv-store', type=str)", "--kv-store"),
        ("auto", 'parser.add_argument("--kvstore")', "--kvstore"),
        ("auto", "kv_store is in the environment", ""),
        ("auto", "# --kv-store is for others", ""),
        ("auto", "", "--kv-store"),
        ("", "parser.add_argument('--kv-store')", ""),
        ("--store", "parser.add_argument('--kv-store')", "--store"),
    ],
)
def test_the_option_of_the_kv_store(option: str, program: str, chosen: str) -> None:
    assert choose_kv_store_option(option, program) == chosen
