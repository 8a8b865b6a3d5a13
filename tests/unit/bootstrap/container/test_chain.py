"""The images that nodes fetch from each other, and an image's file in a node's store."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.container.chain import is_chained
from bootstrap.container.reference import parse_reference
from node.setup.containers import archive
from project import REPOSITORY

IMAGE = f"sha256:{'5e' * 32}"
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com/digits:1"


@pytest.mark.parametrize(
    ("image", "lacking", "chained"),
    [
        ("registry.example.com/digits:1", 0, False),
        ("registry.example.com/digits:1", 1, False),
        ("registry.example.com/digits:1", 2, True),
        ("digits", 15, True),
        (ECR, 15, False),
        ("localhost/digits:1", 0, False),
        ("localhost/digits:1", 1, True),  # which no registry has
    ],
)
def test_two_nodes_or_more_take_it_from_each_other_except_from_ecr(image: str, lacking: int, *, chained: bool) -> None:
    assert is_chained(parse_reference(image), lacking) is chained


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cluster"


def test_a_saved_image_is_a_file_of_the_store_until_it_is_forgotten(home: Path) -> None:
    saved = archive.save(IMAGE, lambda path: Path(path).write_bytes(b"layers"))
    sha256 = hashlib.sha256(b"layers").hexdigest()
    assert saved == {"sha256": sha256, "name": "image-5e5e5e5e5e5e.tar", "size": 6}
    assert Path(archive.find(sha256)).read_bytes() == b"layers"
    assert archive.find(sha256) == str(home / "files" / sha256 / saved["name"])
    archive.forget(sha256)
    archive.forget(sha256)  # a second time is not an error
    assert list((home / "files").iterdir()) == []
    with pytest.raises(FileNotFoundError):
        archive.find(sha256)
    (home / "files" / sha256).mkdir()  # as a program leaves it that is killed before the file arrives
    with pytest.raises(FileNotFoundError):
        archive.find(sha256)


def test_a_failed_save_leaves_nothing(home: Path) -> None:
    def fail(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        archive.save(IMAGE, fail)
    assert list((home / "images").iterdir()) == []


def test_the_file_of_a_killed_save_is_removed_by_the_next(home: Path) -> None:
    program = (
        "import os, signal, archive\n"
        "def write(path):\n"
        "    open(path, 'w').write('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"archive.save('sha256:{'0' * 64}', write)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "node" / "setup" / "containers")}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == -9
    assert [path.read_text() for path in (home / "images").iterdir()] == ["half"]
    archive.save(IMAGE, lambda path: Path(path).write_bytes(b"layers"))
    assert list((home / "images").iterdir()) == []
