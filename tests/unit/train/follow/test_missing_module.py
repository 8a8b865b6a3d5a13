"""Advice for a missing module, based on the files next to the program."""

from pathlib import Path

import pytest

from folders import write_files
from train.follow.missing_module import advise

PROGRAM = ("python", "code/train.py")
BESIDE, TOP = "next to your program on this machine", "is in the folder of cluster.toml on this machine"


@pytest.mark.parametrize(
    ("module", "words", "advice"),
    [
        ("own", PROGRAM, BESIDE),
        ("nested", PROGRAM, BESIDE),
        ("other", PROGRAM, TOP),
        ("deep", PROGRAM, "it: run `cluster train --env PYTHONPATH=src ...` in"),
        ("core", PROGRAM, "core is in packages/core/src/ on this machine"),
        ("loss", PROGRAM, "loss is in packages/loss/ on this machine"),
        ("other", ("", "sh", "-c", "x" * 5000, "\0"), BESIDE),
        # No module of the project: a folder without Python files, that of wandb's runs, and what git hides.
        ("empty", PROGRAM, 'set `[bootstrap] packages = ["empty"]`, then `cluster up`'),
        ("wandb", PROGRAM, '["wandb"]'),
        ("sklearn.svm", PROGRAM, '`[bootstrap] packages = ["scikit-learn"]`'),
        ("\N{GRINNING FACE}" * 300, PROGRAM, "is not on the nodes"),  # no file can have this name
    ],
)
def test_modules_of_the_project_are_found(tmp_path: Path, module: str, words: tuple[str, ...], advice: str) -> None:
    """So that nobody is told to install a package of the same name."""
    inside = ("train.py", "own.py", "package/__init__.py", "nested/inner/a.py", "wandb/run-1/files/b.py")
    outside = ("other.py", "src/deep.py", ".hidden/hidden.py", "packages/core/src/core/__init__.py")
    names = (*(f"code/{name}" for name in inside), *outside, "packages/loss/loss/__init__.py")
    write_files(tmp_path, dict.fromkeys(names, b""))
    (tmp_path / "code" / "empty").mkdir()
    assert advice in advise(module, words, project_dir=tmp_path, packages=())


@pytest.mark.parametrize(
    ("files", "words", "packages", "advice"),
    [
        (("code/requirements.txt", "pyproject.toml"), PROGRAM, (), "to install code/requirements.txt there, set"),
        (("pyproject.toml",), PROGRAM, (), '`[bootstrap] packages = ["-r pyproject.toml"]`'),
        (("code/requirements.txt", "pyproject.toml"), ("python",), (), '["-r pyproject.toml"]'),
        (("requirements.txt",), PROGRAM, ("-r requirements.txt",), "add its package to requirements.txt, then `cl"),
    ],
)
def test_requirements_of_the_project_are_named(
    tmp_path: Path, files: tuple[str, ...], words: tuple[str, ...], packages: tuple[str, ...], advice: str
) -> None:
    write_files(tmp_path, dict.fromkeys(("code/train.py", *files), b""))
    assert advice in advise("pandas", words, project_dir=tmp_path, packages=packages)
