"""A folder that acts as a node's ~/.cluster, and the real place_tree.py in its own process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bootstrap.transfer.tree import Tree, TreeArchives, file_of_bytes, make_tree

PROGRAMS = Path(__file__).parents[3] / "node" / "setup"
ANSWERING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
os.umask(0o077)
import place_tree
for line in sys.stdin:
    home, order = json.loads(line)
    try:
        place_tree.place(home, order)
        answer = {}
    except OSError as error:
        answer = {"errno": error.errno, "said": str(error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Placer:
    """A process that places trees."""

    process: "subprocess.Popen[str]"

    def place(self, home: Path, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(home), order]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def start_placer() -> Iterator[Placer]:
    """Starts a Placer without a locale, as sshd does."""
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERING, str(PROGRAMS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
    ) as process:
        yield Placer(process=process)
        assert process.stdin is not None
        process.stdin.close()


@dataclass(frozen=True, kw_only=True)
class NodeDir:
    """A node's ~/.cluster at `home`; `cache` is the cache of the user's machine."""

    home: Path
    cache: Path
    placer: Placer

    def trees(self) -> set[str]:
        """The trees that facts.sh would list."""
        return {path.parent.name for path in self.home.glob("tree/*/.complete")}

    def send(self, tree: Tree, *, keep: Iterable[str] = ()) -> dict[str, Any]:
        """Places a tree; returns the answer, which is {} on success."""
        return self.placer.place(self.home, self.accept(tree, keep=keep))

    def accept(self, tree: Tree, *, keep: Iterable[str] = ()) -> dict[str, Any]:
        """Puts a tree's archive into files/, as the chain does; returns the task that places it."""
        with TreeArchives([tree], cache=self.cache) as archives:
            file, task = archives.write(tree)
            folder = self.home / "files" / file.sha256
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.path, folder / file.name)
        return {**task, "keep": [tree.digest, *keep], "newest": 3}

    def path(self, tree: Tree) -> Path:
        return self.home / "tree" / tree.digest


def tree_of(files: Mapping[str, bytes], *folders: str, executable: tuple[str, ...] = ()) -> Tree:
    made = [file_of_bytes(path, data) for path, data in files.items()]
    return make_tree([replace(file, mode=0o755) if file.path in executable else file for file in made], folders)


def content_of(root: Path) -> dict[bytes, tuple[int, bytes] | None]:
    """The mode and bytes of all files below a folder, and None for all folders, by path."""
    found: dict[bytes, tuple[int, bytes] | None] = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), top)] = None
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as stream:
                found[os.path.relpath(path, top)] = (os.fstat(stream.fileno()).st_mode & 0o7777, stream.read())
    return found


def wanted_content(tree: Tree) -> dict[bytes, tuple[int, bytes] | None]:
    """The result of content_of for a placed tree."""
    wanted: dict[bytes, tuple[int, bytes] | None] = {b".complete": (0o600, b"")}
    for path in [*(file.path for file in tree.files), *(f"{folder}/." for folder in tree.folders)]:
        parts = path.split("/")
        wanted |= {"/".join(parts[:count]).encode(): None for count in range(1, len(parts))}
    for file in tree.files:
        data = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
        wanted[file.path.encode()] = (file.mode, data)
    return wanted
