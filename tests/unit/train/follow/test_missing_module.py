"""Advice for a missing module, based on the files next to the program."""

from pathlib import Path

import pytest

from folders import write_files
from train.follow.missing_module import Nearby, advise, find_nearby


@pytest.mark.parametrize(
    ("module", "nearby", "advice"),
    [
        ("pandas", Nearby(), 'set `[bootstrap] packages = ["pandas"]`, then `cluster up`'),
        ("sklearn.svm", Nearby(), '`[bootstrap] packages = ["scikit-learn"]`'),
        ("hydra", Nearby(), '`[bootstrap] packages = ["hydra-core"]`'),
        ("pandas", Nearby(requirements="r.txt"), 'to install r.txt there, set `[bootstrap] packages = ["-r r.txt"]`'),
        ("a.b", Nearby(requirements="r.txt", is_used=True), "add its package to r.txt, then `cluster up`"),
        ("mine.x", Nearby(folder="code", is_beside=True, requirements="r.txt"), "name it in `[bootstrap] sync`"),
        ("mine.x", Nearby(folder=".", requirements="r.txt"), "mine.x is in the folder of cluster.toml on this machine"),
        ("mine.x", Nearby(folder="a b/c"), "it: run `cluster train --env PYTHONPATH='a b/c' ...` in"),
    ],
)
def test_advice_depends_on_the_files_that_exist(module: str, nearby: Nearby, advice: str) -> None:
    assert advice in advise(module, nearby)


@pytest.mark.parametrize(
    ("module", "words", "folder", "is_beside"),
    [
        ("own", ("code/train.py",), "code", True),
        ("package.sub", ("code/train.py",), "code", True),
        ("nested", ("code/train.py",), "code", True),
        ("empty", ("code/train.py",), None, False),
        ("wandb", ("code/train.py",), None, False),  # the folder of its runs
        ("other", ("code/train.py",), ".", False),
        ("deep", ("code/train.py",), "src", False),
        ("core", ("code/train.py",), "packages/core/src", False),
        ("loss", ("code/train.py",), "packages/loss", False),
        ("hidden", ("code/train.py",), None, False),
        ("installed", ("code/train.py",), None, False),
        ("other", ("", "sh", "-c", "x" * 5000, "\0"), ".", True),
        ("own", ("python", "-m", "code.train"), "code", False),
        ("\N{GRINNING FACE}" * 300, ("code/train.py",), None, False),  # no file can have this name
    ],
)
def test_modules_of_the_project_are_found(
    tmp_path: Path, module: str, words: tuple[str, ...], folder: str | None, *, is_beside: bool
) -> None:
    """So that nobody is told to install a package of the same name."""
    inside = ("train.py", "own.py", "package/__init__.py", "nested/inner/a.py", "wandb/run-1/files/b.py")
    outside = ("other.py", "src/deep.py", ".hidden/hidden.py", "venv/pyvenv.cfg", "venv/lib/installed.py")
    below = ("packages/core/src/core/__init__.py", "packages/loss/loss/__init__.py")
    write_files(tmp_path, dict.fromkeys((*(f"code/{name}" for name in inside), *outside, *below), b""))
    (tmp_path / "code" / "empty").mkdir()
    found = find_nearby(module, words, project_dir=tmp_path, packages=())
    assert (found.folder, found.is_beside) == (folder, is_beside)


def test_requirements_next_to_the_program_and_next_to_cluster_toml_are_found(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").touch()

    def find(*words: str, packages: tuple[str, ...] = ()) -> Nearby:
        return find_nearby("pandas", words, project_dir=tmp_path, packages=packages)

    assert find("code/own.py") == Nearby()
    (tmp_path / "pyproject.toml").touch()
    assert find("python", "code/own.py") == Nearby(requirements="pyproject.toml")
    (tmp_path / "code" / "requirements.txt").touch()
    assert find("code/own.py") == Nearby(requirements="code/requirements.txt")
    assert find("code/own.py", packages=("-r code/requirements.txt",)).is_used
    assert find("python").requirements == "pyproject.toml"
    (tmp_path / "requirements.txt").touch()
    assert find("python").requirements == "requirements.txt"
