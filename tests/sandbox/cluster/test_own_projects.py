"""A user's first hour with a project of their own: few commands, few edits, and no message that is wrong."""

import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ordinary_user import NEEDS_NAMESPACES, UID, User, ordinary_user
from project import REPOSITORY
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1200), NEEDS_NAMESPACES]

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


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with ordinary_user() as user:
        yield user


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A user's own project, with 300 images below a folder that git ignores."""

    user: User
    folder: Path

    def run(self, words: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a `cluster` command in the project's folder."""
        # Where this machine has PyTorch's CPU build, so has the user's pip.
        wheels = [f"PIP_FIND_LINKS={os.environ['PIP_FIND_LINKS']}"] if "PIP_FIND_LINKS" in os.environ else []
        line = f"cd {self.folder} && {self.user.source}/.venv/bin/cluster {words}"
        done = self.user.run("env", *wheels, "sh", "-c", line, check=False)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture
def own(user: User, request: pytest.FixtureRequest) -> Iterator[Own]:
    """The project that the test names. Its sandbox is removed at the end."""
    folder = user.home / request.param
    shutil.copytree(PROJECTS / request.param, folder)
    for label, name in enumerate(("dark", "light")):
        images = folder / "data" / "train" / name
        images.mkdir(parents=True)
        for number in range(150):
            write_png(images / f"{number:03}.png", bytes((number + at) % 100 + 100 * label for at in range(SIDE**2)))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UID, UID)
    found = Own(user=user, folder=folder)
    try:
        yield found
    finally:
        found.run("sandbox reset")
        until(lambda: not user.processes(), "the user's namespaces stay")
        shutil.rmtree(folder)


@pytest.mark.parametrize("own", ["ddp", "gluon"], indirect=True)
def test_an_own_project_on_two_nodes(own: Own) -> None:
    """From nothing to results on the user's machine, without root and sudo, in six commands and one edit."""
    assert len(COMMANDS) <= 6
    said = {}
    for words in COMMANDS:
        done = own.run(words)
        assert not WRONG.search(done.stderr), done.stderr
        said[words] = done.stdout
        if words == "init":
            assert all(new in done.stderr for new in EDITS.values())
            path = own.folder / "cluster.toml"
            text = path.read_text()
            for old, new in EDITS.items():
                assert text.count(old) == 1
                text = text.replace(old, new)
            path.write_text(text)
    assert re.search(r"^\[worker 0 node-\d\] epoch 1: 300 images, loss \d", said["train"], re.MULTILINE)
    (results,) = (path for path in (own.folder / "results").iterdir() if path.is_dir())
    names = {path.name.partition(".")[0] for path in results.rglob("*") if path.is_file()}
    assert names == {"checkpoint-0", "checkpoint-1", "events"}
    assert re.search(r"left +nothing", said["down --yes"])
