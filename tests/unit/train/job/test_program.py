"""train/job/program.py: the text of the user's own program."""

from pathlib import Path

import pytest

from foundation.errors import UsageError
from train.job.defaults import job_name
from train.job.program import choose_kv_store_option, find_command, read_program, trains_alone

OWN = "print('own')"


@pytest.mark.parametrize(
    ("script", "command", "text"),
    [
        ("own.py", (), OWN),
        ("train_mnist.py", (), ""),  # this script ships with the project
        ("train_mnist.py", ("python3", "-u", "own.py", "--lr", "1"), OWN),
        ("own.py", ("python", "-m", "pkg.own"), OWN),
        ("train_mnist.py", ("sh", "-c", "cd pkg && exec python below.py"), OWN),
    ],
)
def test_the_text_of_a_program(tmp_path: Path, script: str, command: tuple[str, ...], text: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own.py.txt").write_text("other")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "own.py").write_text(OWN)
    (tmp_path / "pkg" / "below.py").write_text(OWN)
    assert read_program(script, command=command, project_dir=tmp_path) == text
    if command:  # relative to the folder that it runs in
        assert read_program(script, command=command, project_dir=tmp_path.parent, subfolder=tmp_path.name) == text


def test_a_programs_text_includes_its_own_modules(tmp_path: Path) -> None:
    files = {
        "own.py": "import os, common.fit as fit\nfrom helpers import (\n    a)\nfrom package import below\n"
        "import own, space.inside",
        "common/__init__.py": "",
        "common/fit.py": "FIT\nfrom . import data\nfrom .. import helpers\nfrom .missing import x",
        "common/data.py": "DATA",
        "helpers.py": "HELPERS",
        "package/__init__.py": "PACKAGE",
        "package/below.py": "BELOW",
        "space/inside.py": "INSIDE\nfrom space.deep import more",  # a namespace package
        "space/deep/more.py": "MORE",
        "other.py": "OTHER",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    found = read_program("own.py", command=(), project_dir=tmp_path)
    words = ("FIT", "DATA", "HELPERS", "PACKAGE", "BELOW", "INSIDE", "MORE")
    assert [word for word in words if word not in found] == []
    assert "OTHER" not in found
    assert found.count("HELPERS") == 1


@pytest.mark.parametrize(
    ("option", "program", "chosen"),
    [
        ("auto", "parser.add_argument('--kv-store', type=str)", "--kv-store"),
        ("auto", 'parser.add_argument("--kvstore")', "--kvstore"),
        ("auto", "kv_store is in the environment", ""),
        ("auto", "", "--kv-store"),
        ("", "parser.add_argument('--kv-store')", ""),
        ("--store", "parser.add_argument('--kv-store')", "--store"),
    ],
)
def test_the_option_of_the_kv_store(option: str, program: str, chosen: str) -> None:
    assert choose_kv_store_option(option, program) == chosen


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("own.py", "#!/usr/bin/env python3\nprint(1)", ()),
        ("run.sh", "echo", ("sh", "run.sh", "--lr", "1")),
        ("run.sh", "#!/bin/bash -e\necho", ("/bin/bash", "-e", "run.sh", "--lr", "1")),
        ("missing.sh", None, ()),
    ],
)
def test_what_runs_a_script(tmp_path: Path, name: str, *, text: str | None, command: tuple[str, ...]) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert find_command(name, ["--lr", "1"], project_dir=tmp_path) == command
    if command:
        assert job_name("auto", command) == name


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nb.ipynb", "{}", "nb.ipynb: a notebook is not a script"),
        ("run.sh", "#!/bin/bash\r\necho\r\n", "run.sh, line 1: the line ends as on Windows"),
        ("own.py", "a = 1\nprint 'x'\n", "own.py, line 2: Missing parentheses in call to 'print'"),
        ("own.py", "def f():\n\treturn 1\n        return 2", "own.py, line 3: inconsistent use of tabs"),
        ("own.py", "a = 1\0", "null bytes"),
    ],
)
def test_scripts_that_cannot_run(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        find_command(name, [], project_dir=tmp_path)
    assert message in raised.value.message
    assert raised.value.hint


LOOP = "import torch\nfor x, y in loader:\n    loss(net(x), y).backward()\n"


@pytest.mark.parametrize(
    ("program", "alone"),
    [
        (LOOP, True),
        ("import torch\nprint(torch.ones(1))", False),
        ("import mxnet as mx\nloss.backward()", False),
        (f"import torch.distributed as dist\n{LOOP}", False),
        (f"from accelerate import Accelerator\n{LOOP}", False),
        (f"from torch.utils.data.distributed import DistributedSampler\n{LOOP}", True),
        (f"seed = os.environ['CLUSTER_RANK']\n{LOOP}", False),  # a search with a model for each rank
    ],
)
def test_a_program_that_joins_no_process_group(program: str, *, alone: bool) -> None:
    assert trains_alone(program) == alone
