"""[bootstrap] mxnet = "PATH.whl": where it comes from, and the example that builds one."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.environment.own_wheel import find_own_wheel
from foundation.errors import ConfigError, NotFoundError
from foundation.progress import silent
from project import REPOSITORY

NAME = "mxnet-1.7.0-1_cu112-py3-none-linux_x86_64.whl"
# The layout of MXNet's repository: a Makefile, submodules' folders, tools, and python/setup.py.
MAKEFILE = """\
lib/libmxnet.so: src/answer.c
\tmkdir -p lib
\t@echo "compiling for $(USE_BLAS), S3 $(USE_S3), by $$BUILDER"
\t$(CC) -shared -fPIC -DS3=$(USE_S3) -o $@ $<
"""
LIBINFO = """\
import os

__version__ = "1.7.0"


def find_lib_path():
    here = os.path.dirname(os.path.abspath(os.path.expanduser(__file__)))
    paths = [os.path.join(here, "libmxnet.so"), os.path.join(here, "../../lib/libmxnet.so")]
    return [path for path in paths if os.path.isfile(path)]
"""
SETUP = """\
import os
from setuptools import find_packages, setup

libinfo_py = os.path.join(os.path.dirname(__file__), "mxnet/libinfo.py")
libinfo = {"__file__": libinfo_py}
exec(compile(open(libinfo_py, "rb").read(), libinfo_py, "exec"), libinfo, libinfo)
setup(
    name="mxnet",
    version=libinfo["__version__"],
    packages=find_packages(),
    data_files=[("mxnet", [libinfo["find_lib_path"]()[0]])],
    install_requires=["numpy<2.0.0,>1.16.0"],
    zip_safe=False,
)
"""
FILES = {
    "Makefile": MAKEFILE,
    "src/answer.c": "int answer(void) { return 40 + S3 + 1; }\n",
    "tools/launch.py": "print('launched')\n",
    "3rdparty/dmlc-core/tracker/dmlc_tracker/__init__.py": "",
    "3rdparty/dmlc-core/tracker/dmlc_tracker/tracker.py": "PORT = 9091\n",
    "python/setup.py": SETUP,
    "python/mxnet/libinfo.py": LIBINFO,
    "python/mxnet/__init__.py": "import ctypes\nfrom .libinfo import find_lib_path\n"
    "answer = ctypes.CDLL(find_lib_path()[0]).answer()\n",
}
METADATA = "Name: mxnet\nRequires-Dist: numpy <2\nRequires-Dist: onnx ; extra == 'onnx'\n\nRequires-Dist: no\n"


def write_repository(repository: Path) -> None:
    """Makes the repository, with one commit on the branch v1.7.x."""
    for name, text in FILES.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for words in ("init --quiet --initial-branch v1.7.x", "add --all", "commit --quiet --message first"):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words.split()]
        subprocess.run(command, cwd=repository, capture_output=True, check=True)


def write_wheel(folder: Path) -> Path:
    path = folder / NAME
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("mxnet-1.7.0.dist-info/METADATA", METADATA)
    return path


def find(setting: str, folder: Path, cache: Path) -> BundleFile | None:
    def get_object(url: str, path: Path) -> None:
        assert url == f"s3://b/{NAME}"
        path.write_bytes((folder / NAME).read_bytes())

    return find_own_wheel(setting, folder=folder, get_object=get_object, cache=cache, report=silent)


@pytest.mark.parametrize("setting", [NAME, f"s3://b/{NAME}"])
def test_a_wheel_from_a_folder_or_s3(tmp_path: Path, setting: str) -> None:
    path = write_wheel(tmp_path)
    found = find(setting, tmp_path, tmp_path / "cache")
    assert (found.name, found.sha256) == (NAME, describe_file(path).sha256)
    if setting == NAME:  # an address is fetched only once
        with zipfile.ZipFile(path, "a") as wheel:
            wheel.writestr("mxnet/libmxnet.so", "")
        assert find(setting, tmp_path, tmp_path / "cache").sha256 == describe_file(path).sha256


def test_a_wheel_from_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_wheel(tmp_path)
    asked = []

    def open_request(_: object, request: object, **_more: object) -> object:
        asked.append(request.full_url)  # type: ignore[attr-defined]
        return path.open("rb")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", open_request)
    url = f"https://example.com/wheels/{NAME}"
    for _ in range(2):
        assert find(url, tmp_path, tmp_path / "cache").name == NAME
    assert asked == [url]


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ("torch-2-py3-none-any.whl", ConfigError, "not the name of an MXNet wheel"),
        ("x/mxnet-1.7.0-py3-none-any.whl", NotFoundError, "No such file"),
    ],
)
def test_files_that_are_no_wheel(tmp_path: Path, setting: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find(setting, tmp_path, tmp_path / "cache")


def test_the_example_builds_a_wheel(tmp_path: Path) -> None:
    """With a small repository of the same layout; the wheel then works."""
    repository = tmp_path / "it's odd"
    write_repository(repository)
    script = REPOSITORY / "examples" / "build-mxnet.sh"
    command = ["sh", str(script), "v1.7.x", "USE_S3=0", "USE_BLAS=none"]
    env = {"PATH": os.defpath, "PYTHON": sys.executable, "REPOSITORY": f"file://{repository}", "CUDA": "/none"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compiling for none, S3 0" in done.stdout
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"mxnet-1.7.0-1_cpu-py3-none-linux_{os.uname().machine}.whl"
    with zipfile.ZipFile(wheel) as content:
        assert b"Requires-Dist: numpy" in content.read("mxnet-1.7.0.dist-info/METADATA")
        assert not any(".data/" in name for name in content.namelist())
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--target"]
    subprocess.run([*install, str(tmp_path / "target"), str(wheel)], check=True)
    assert (tmp_path / "target" / "mxnet" / "tools" / "launch.py").is_file()
    code = "import mxnet; from dmlc_tracker import tracker; print(mxnet.answer, tracker.PORT)"
    env = {"PYTHONPATH": str(tmp_path / "target"), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["41", "9091"]
