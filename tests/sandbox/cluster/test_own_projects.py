"""A user's first hour with a project of their own: few commands, few edits, and no message that is wrong."""

import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.progress import silent
from project import REPOSITORY, Project
from sandbox import control
from sandbox.place import find_leftovers, place_of

pytestmark = pytest.mark.sandbox

PROJECTS = REPOSITORY / "tests" / "support" / "on_nodes" / "projects"
SIDE = 16
COMMANDS = ("init", "up", "train", "results", "down --yes", "sandbox stop --yes")
EDITS = {"# exclude = []": 'exclude = ["!data/"]'}
WRONG = re.compile(r"^(error|warning|hint|!!|  try:)", re.MULTILINE)


def write_png(path: Path, pixels: bytes) -> None:
    """Writes a grey image."""
    rows = zlib.compress(b"".join(b"\0" + pixels[row * SIDE : (row + 1) * SIDE] for row in range(SIDE)))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    packed = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    """The project that the test names, with 300 images below a folder that git ignores."""
    directory = tmp_path / request.param
    shutil.copytree(PROJECTS / request.param, directory)
    for label, name in enumerate(("dark", "light")):
        folder = directory / "data" / "train" / name
        folder.mkdir(parents=True)
        for number in range(150):
            write_png(folder / f"{number:03}.png", bytes((number + at) % 100 + 100 * label for at in range(SIDE**2)))
    try:
        yield Project(directory, env={"XDG_STATE_HOME": str(tmp_path / "state")})
    finally:
        control.reset(directory, report=silent)


@pytest.mark.slow
@pytest.mark.parametrize("own", ["ddp", "gluon"], indirect=True)
def test_an_own_project_on_two_nodes(own: Project) -> None:
    assert len(COMMANDS) <= 6
    said = {}
    for words in COMMANDS:
        done = own.run(*words.split(), timeout_s=600)
        assert not WRONG.search(done.stderr), done.stderr
        said[words] = done.stdout
        if words == "init":
            path = own.directory / "cluster.toml"
            text = path.read_text()
            for old, new in EDITS.items():
                assert text.count(old) == 1
                text = text.replace(old, new)
            path.write_text(text)
    assert re.search(r"^\[worker 0 node-\d\] epoch 1: 300 images, loss \d", said["train"], re.MULTILINE)
    (results,) = (path for path in (own.directory / "results").iterdir() if path.is_dir())
    names = {path.name.partition(".")[0] for path in results.rglob("*") if path.is_file()}
    assert names == {"checkpoint-0", "checkpoint-1", "events"}
    assert re.search(r"left +nothing", said["down --yes"])
    assert not find_leftovers(place_of(own.directory))


@pytest.mark.slow
@pytest.mark.parametrize("own", ["gluon"], indirect=True)
def test_the_hint_for_data_that_git_ignores(own: Project) -> None:
    """The script does not find its data; the hint is the edit that sends it."""
    own.run("init")
    own.run("up")
    failed = own.run("train", code=1)
    assert "left out by .gitignore: data/ (300 files, " in failed.stderr
    assert f"to send it, set `[bootstrap] {EDITS['# exclude = []']}`" in failed.stderr
    assert failed.stdout.count("FileNotFoundError") == 1
    assert "the same traceback on 2 processes" in failed.stderr
