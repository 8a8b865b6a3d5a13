"""Advice for a missing module, based on the files next to the program."""

from pathlib import Path

import pytest

from train.follow.missing_module import Nearby, advise, find_nearby


@pytest.mark.parametrize(
    ("module", "nearby", "advice"),
    [
        ("pandas", Nearby(), 'set `[bootstrap] packages = ["pandas"]`, then `cluster up`'),
        ("sklearn.svm", Nearby(), '`[bootstrap] packages = ["scikit-learn"]`'),
        (
            "pandas",
            Nearby(requirements="requirements.txt"),
            'to install requirements.txt there, set `[bootstrap] packages = ["-r requirements.txt"]`, then `cl',
        ),
        ("a.b", Nearby(requirements="r.txt", is_used=True), "add its package to r.txt, then `cluster up`"),
        ("mine.x", Nearby(modules=frozenset({"mine"}), requirements="r.txt"), "name it in `[bootstrap] sync`"),
    ],
)
def test_advice_depends_on_the_files_that_exist(module: str, nearby: Nearby, advice: str) -> None:
    assert advice in advise(module, nearby)


def test_files_next_to_the_program_and_next_to_cluster_toml_are_found(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "code" / "package").mkdir(parents=True)
    (project / "code" / "empty").mkdir()
    (project / "code" / "nested" / "inner").mkdir(parents=True)
    (project / "code" / "wandb" / "run-1" / "files").mkdir(parents=True)
    for name in (
        "code/own.py",
        "code/mymod.py",
        "code/package/__init__.py",
        "other.py",
        "code/nested/inner/a.py",
        "code/wandb/run-1/files/b.py",
    ):
        (project / name).write_text("")

    def find(*words: str, packages: tuple[str, ...] = ()) -> Nearby:
        return find_nearby(words, project_dir=project, packages=packages)

    modules = frozenset({"own", "mymod", "package", "nested"})
    assert find("code/own.py") == Nearby(modules=modules)
    assert find("", "sh", "-c", "x" * 5000, "\0") == Nearby(modules=frozenset({"other", "code"}))
    (project / "pyproject.toml").write_text("")
    assert find("python", "code/own.py") == Nearby(modules=modules, requirements="pyproject.toml")
    (project / "code" / "requirements.txt").write_text("")
    assert find("code/own.py") == Nearby(modules=modules, requirements="code/requirements.txt")
    assert find("code/own.py", packages=("-r code/requirements.txt",)).is_used
    assert find("python").requirements == "pyproject.toml"
    (project / "requirements.txt").write_text("")
    assert find("python").requirements == "requirements.txt"
