"""[bootstrap] project: what uv exports from a lock file, and which projects are refused."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from bootstrap.environment.project import (
    LockedProject,
    _fits,
    _Project,
    check_against_lock,
    locked_versions,
    parse_export,
    read_project,
)
from bootstrap.environment.requirements import Wanted, parse_project
from foundation.decode import convert
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
    with pytest.raises(ConfigError, match=r"mine/uv\.lock: Expected '='"):
        read_project("mine", folder=tmp_path)
    (folder / "uv.lock").write_text('version = 99\nrequires-python = ">=3.10"\n')
    with pytest.raises(ConfigError, match=r"uv cannot read uv\.lock"):
        read_project("mine", folder=tmp_path)


HEAD = 'version = 1\nrevision = 3\nrequires-python = ">=3.9, <4"\n'
LOCK = (
    HEAD
    + """
[[package]]
name = "mine"
version = "1"
source = { editable = "." }
dependencies = [
    { name = "six" },
]

[package.metadata]
requires-dist = [{ name = "six" }]

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://example.org/six-1.17.0-py2.py3-none-any.whl", hash = "sha256:HASH" },
]
""".replace("HASH", "a" * 64)
)


def test_nothing_of_a_project_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its build backend, the Python of its .venv, and the program that its uv.toml names for passwords."""
    ran = tmp_path / "ran"
    build = '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
    about = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.9,<4"\ndynamic = ["dependencies"]\n'
    (tmp_path / "pyproject.toml").write_text(about + build)
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (tmp_path / "uv.lock").write_text(LOCK)
    (tmp_path / "uv.toml").write_text("not = [a setting")
    (tmp_path / ".python-version").write_text(str(tmp_path / ".venv" / "bin" / "python"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\ntouch "{ran}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    found = read_project(".", folder=tmp_path)
    assert [one.requirement for one in found.packages] == ["six==1.17.0"]
    assert not ran.exists()


MANY = """
dependencies = ['A_b[x] >= 1.0, !=1.1; python_version<"3.10"', 'own', 'far @ https://h/far.whl']
optional-dependencies.more = ['idna']
[tool.uv.sources]
own = { path = '../own' }
"""
MANY_LOCKED = """
requires-dist = [
    { name = "a-b", extras = ["x"], marker = "python_full_version < '3.10'", specifier = "!=1.1,>=1.0" },
    { name = "far", url = "https://h/far.whl" },
    { name = "idna", marker = "extra == 'more'" },
    { name = "own", directory = "../own" },
]
"""


@pytest.mark.parametrize(
    ("project", "metadata", "fits"),
    [
        ("dependencies = ['six']", "requires-dist = [{ name = 'six' }]", True),
        ("dependencies = ['six>=1']", "requires-dist = [{ name = 'six' }]", False),
        ("dependencies = []", "requires-dist = [{ name = 'six' }]", False),
        ("dependencies = ['six']", "", False),
        ("", "", True),
        (MANY, MANY_LOCKED, True),
        ("dynamic = ['dependencies']", "requires-dist = [{ name = 'six' }]", True),
        ("requires-python = '>=3.9, <4.0'", "", True),
        ("requires-python = '~=3.9'", "", True),
        ("requires-python = '>=3.10'", "", False),
        ("name = 3", "", None),
        ("dependencies = 3", "", None),
        ("requires-python = 'three'", "", None),
        ("dependencies = ['six']", "requires-dist = [{ name = 3 }]", None),
    ],
)
def test_a_lock_fits_its_project(project: str, metadata: str, *, fits: bool | None) -> None:
    own = f'[[package]]\nname = "mine"\nversion = "1"\nsource = {{ virtual = "." }}\n\n[package.metadata]\n{metadata}'
    with nullcontext() if fits is not None else pytest.raises(ValueError, match=r"."):
        assert _fits(convert(parse_project(f"[project]\n{project}\n"), _Project), f"{HEAD}\n{own}\n") is fits
