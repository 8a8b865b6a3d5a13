"""What [bootstrap] packages and project ask for: requirements files, and the locks of uv's projects."""

import json
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from bootstrap.environment.project import read_project, read_requirements
from bootstrap.environment.requirements import MXNET, find_locked, find_name, read_packages
from foundation.errors import ConfigError

HASH = f"--hash=sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "lines", "limits"),
    [
        ("pandas>=2,<3 # why\r\n\r\n# six\r\nsix\r\n", ["pandas>=2,<3", "six"], []),
        ("\ufeffpandas", ["pandas"], []),
        ('a; python_version < "3.10"', ['a; python_version < "3.10"'], []),
        ("a@https://host/a-1-py3-none-any.whl", ["a@https://host/a-1-py3-none-any.whl"], []),
        (f"a==1 \\\n  {HASH}\nb", [f"a==1 {HASH}", "b"], []),
        ("-r more/other.txt", ["other", "deep"], []),
        ("--requirement=more/deep.txt\n-r r.txt\n-r more/deep.txt", ["deep"], []),
        ("-cmore/other.txt\na", ["a"], ["other", "deep"]),
        ("-r pyproject.toml", ["from-project>=1"], []),
    ],
)
def test_requirements_files_are_read(tmp_path: Path, text: str, lines: list[str], limits: list[str]) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.txt").write_text("other\n-r deep.txt\n")
    (tmp_path / "more" / "deep.txt").write_text("deep")
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['from-project>=1']\n")
    (tmp_path / "r.txt").write_bytes(text.encode())
    assert read_packages(["-r r.txt"], folder=tmp_path) == (tuple(lines), tuple(limits))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--index-url https://me:secret@host/simple", "the option --index-url is not supported: set up pip or uv"),
        ("a @ https://me:secret@host/a.whl", "not a URL without a password, of a wheel"),
        ("a @ git+http://host/a", "not a URL without a password"),
        ("a @ git+file:///home/me/a", "not a URL without a password"),  # sync, too, sends nothing from other folders
        ("a @ git+https://me:secret@host/a", "not a URL without a password"),
        ("git+https://host/a", "of a git repository: NAME @ git+https://HOST/REPOSITORY@TAG"),
        *((text, "files are not packages") for text in ("./a", "-e .", "dist/a-1-py3-none-any.whl", "other.txt")),
        ("-r none.txt", "none.txt: No such file"),
    ],
)
def test_unsupported_lines_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as raised:
        read_packages(["numpy", "-r r.txt"], folder=tmp_path)
    assert message in raised.value.message
    assert "secret" not in raised.value.message


def test_the_packages_of_the_users_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match='packages = "here": no environment is active'):
        read_requirements("here", project="", folder=tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match='packages = "here": '):
        read_requirements("here", project="", folder=tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # where this project is installed as an editable one
    lines = read_requirements("here", project="", folder=tmp_path).lines
    assert f"uv=={version('uv')}" in lines
    assert not any(find_name(line) in {"pip", "mxnet-cluster", ""} for line in lines)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("https://example.com/mine-2.0-py3-none-any.whl", "mine @ https://example.com/mine-2.0-py3-none-any.whl"),
        ("file:///croot/mine_1708638617955/work", "mine==2.0"),
        ("file:///tmp", None),
        ("https://example.com/mine-2.0.tar.gz", None),
    ],
    ids=["a wheel's address", "a folder of conda's build", "a folder of this machine", "a source's address"],
)
def test_a_package_of_an_address_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, line: str | None
) -> None:
    venv.create(tmp_path, with_pip=False)
    (tmp_path / "conda-meta").mkdir()
    info = next(tmp_path.glob("lib/python3*/site-packages")) / "mine-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 2.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    found = read_requirements("here", project="", folder=tmp_path)
    assert (found.lines, found.left) == (((line,), ()) if line else ((), (f"mine @ {url}",)))


PYPROJECT = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = []\n'


def test_a_project_of_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"pyproject\.toml: No such file"):
        read_project("mine", folder=tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    with pytest.raises(ConfigError, match=r"uv\.lock: No such file") as caught:
        read_project("mine", folder=tmp_path)
    assert f"cd {folder} && uv lock" in (caught.value.hint or "")
    subprocess.run((sys.executable, "-m", "uv", "lock", "--quiet", "--offline"), cwd=folder, check=True)
    assert read_project("mine", folder=tmp_path) == ((), ">=3.9")
    (folder / "pyproject.toml").write_text(f'{PYPROJECT}[tool.uv]\ncache-dir = "{tmp_path / "theirs"}"\n')
    assert read_project("mine", folder=tmp_path) == ((), ">=3.9")
    assert not (tmp_path / "theirs").exists()
    (folder / "pyproject.toml").write_text(PYPROJECT.replace(">=3.9", ">=3.10"))
    with pytest.raises(ConfigError, match=r"uv\.lock does not fit pyproject\.toml") as caught:
        read_project("mine", folder=tmp_path)
    assert caught.value.hint == f"cd {folder} && uv lock"
    (folder / "uv.lock").write_text("not a lock file")
    with pytest.raises(ConfigError, match=r"\|.*uv\.lock"):
        read_project("mine", folder=tmp_path)


LOCK = """\
version = 1
revision = 3
requires-python = ">=3.9, <4"

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


def test_nothing_of_a_project_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its build backend nor the Python of its .venv."""
    ran = tmp_path / "ran"
    build = '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
    about = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.9,<4"\ndynamic = ["dependencies"]\n'
    (tmp_path / "pyproject.toml").write_text(about + build)
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (tmp_path / "uv.lock").write_text(LOCK)
    (tmp_path / ".python-version").write_text(str(tmp_path / ".venv" / "bin" / "python"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\ntouch "{ran}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    expected = ((f"six==1.17.0 --hash=sha256:{'a' * 64}",), ">=3.9,<4")
    assert read_project(".", folder=tmp_path) == expected
    (tmp_path / "pyproject.toml").write_text(
        about.replace('dynamic = ["dependencies"]', 'dependencies = ["six"]') + build
    )
    assert read_project(".", folder=tmp_path) == expected
    assert not ran.exists()


def test_a_lock_for_several_kinds_of_nodes() -> None:
    lines = (
        "six==1.17.0",
        f"mxnet==1.9.1 ; python_full_version < '3.10' {HASH}",
        "mxnet==2.0 ; platform_machine == 'x86_64'",
    )
    found = [find_locked(lines, MXNET, python_version=(3, minor), machine="x86_64") for minor in (9, 11)]
    assert found == ["mxnet==1.9.1", "mxnet==2.0"]
    assert find_locked(lines, MXNET, python_version=(3, 11), machine="aarch64") is None
