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
from source_repository import write_repository

NAME = "mxnet-1.7.0-1_cu112-py3-none-linux_x86_64.whl"
METADATA = "Name: mxnet\nRequires-Dist: numpy <2\nRequires-Dist: onnx ; extra == 'onnx'\n\nRequires-Dist: no\n"


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
