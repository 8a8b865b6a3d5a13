"""[bootstrap] project: what uv exports from a lock file, and which projects are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.environment.project import LockedProject, check_against_lock, locked_versions, parse_export, read_project
from bootstrap.environment.requirements import Wanted
from foundation.errors import ConfigError

EXPORT = f"""\
numpy==2.2.6 ; python_full_version < '3.11' \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
numpy==2.4.6 ; python_full_version >= '3.11' \\
    --hash=sha256:{"c" * 64}
six==1.16.0 \\
    --hash=sha256:{"d" * 64}
"""
PYPROJECT = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = []\n'


def test_an_export_is_read_with_its_hashes() -> None:
    numpy, _, six = parse_export(EXPORT, name="p")
    assert numpy.hashes == (f"sha256:{'a' * 64}", f"sha256:{'b' * 64}")
    assert (six.requirement, six.place) == ("six==1.16.0", "p/uv.lock")
    assert locked_versions([numpy, six]) == {"numpy": "2.2.6", "six": "1.16.0"}
    assert locked_versions(parse_export(EXPORT, name=".")) == {"six": "1.16.0"}


@pytest.mark.parametrize("line", ["-e ./below", "below @ file:///x/below", "x @ https://example.org/x-1-none.whl"])
def test_packages_that_no_index_has_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"p/uv.lock: ") as caught:
        parse_export(f"{line}\n", name="p")
    assert "uv lock" in (caught.value.hint or "")


def test_packages_that_contradict_the_lock_are_refused() -> None:
    locked = parse_export(EXPORT, name="p")
    check_against_lock([Wanted(requirement=fits, place="here") for fits in ("six>=1.15", "six", "docopt==1")], locked)
    with pytest.raises(ConfigError, match=r"here: six>=1.17 contradicts .* locks version 1.16.0") as caught:
        check_against_lock([Wanted(requirement="six>=1.17", place="here")], locked)
    assert "uv add 'six>=1.17'" in (caught.value.hint or "")


@pytest.mark.parametrize(("python", "fits"), [("", True), (">=3.10", True), (">=3.12", False), ("<3.11", False)])
def test_the_python_of_a_project(python: str, fits: bool) -> None:  # noqa: FBT001 - a column of the table
    assert LockedProject(python=python).allows((3, 11)) is fits


def test_a_project_of_uv(tmp_path: Path) -> None:
    assert read_project("", folder=tmp_path) == LockedProject()
    with pytest.raises(ConfigError, match=r"has no pyproject\.toml"):
        read_project("mine", folder=tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    with pytest.raises(ConfigError, match=r"has no uv\.lock") as caught:
        read_project("mine", folder=tmp_path)
    assert caught.value.hint == f"cd {folder} && uv lock"
    subprocess.run((sys.executable, "-m", "uv", "lock", "--quiet", "--offline"), cwd=folder, check=True)
    assert read_project("mine", folder=tmp_path) == LockedProject(python=">=3.9")
    (folder / "pyproject.toml").write_text(PYPROJECT.replace(">=3.9", ">=3.10"))
    with pytest.raises(ConfigError, match=r"uv\.lock does not fit pyproject\.toml") as caught:
        read_project("mine", folder=tmp_path)
    assert caught.value.hint == f"cd {folder} && uv lock"
    (folder / "uv.lock").write_text("not a lock file")
    with pytest.raises(ConfigError, match=r"uv cannot read uv\.lock"):
        read_project("mine", folder=tmp_path)
