"""A tree: files and folders that nodes get, named by their content. On a node it lies at ~/.cluster/tree/DIGEST/."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PLAIN = 0o644
EXECUTABLE = 0o755


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeFile:
    """One file of a tree.

    path: in the tree, relative, with `/`, UTF-8. sha256: in lower-case hexadecimal. mode: PLAIN or EXECUTABLE.
    source: the file on this machine that has its bytes, or the bytes.
    """

    path: str
    sha256: str
    size_bytes: int
    mode: int
    source: Path | bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """Files in the order of their paths, and the folders that are empty. Made by make_tree.

    manifest: all of it but the bytes, as the JSON object {"files": [[path, sha256, mode, size], ...],
    "folders": [path, ...]}. digest: the manifest's SHA-256, in lower-case hexadecimal, which so names the content.
    """

    files: tuple[TreeFile, ...]
    folders: tuple[str, ...]
    manifest: bytes
    digest: str

    @property
    def size_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size_bytes for file in self.files)


def make_tree(files: Iterable[TreeFile], folders: Iterable[str] = ()) -> Tree:
    """The tree of these files and empty folders, whatever order they come in. Pure."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    empty = tuple(sorted(folders))
    entries = [[file.path, file.sha256, file.mode, file.size_bytes] for file in ordered]
    manifest = json.dumps({"files": entries, "folders": empty}, separators=(",", ":")).encode()
    return Tree(files=ordered, folders=empty, manifest=manifest, digest=hashlib.sha256(manifest).hexdigest())


def file_of_bytes(path: str, data: bytes) -> TreeFile:
    """A file of a tree from its bytes; what begins with `#!` can be executed. Pure."""
    return TreeFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        mode=EXECUTABLE if data.startswith(b"#!") else PLAIN,
        source=data,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A tree that a node has.

    entries: SHA-256, mode and size of each file, by its path. paths: where each content lies, by its SHA-256.
    """

    digest: str
    entries: Mapping[str, tuple[str, int, int]]
    paths: Mapping[str, str]


@lru_cache(maxsize=8)
def parse_base(manifest: bytes) -> Base:
    """A tree's manifest as a base. Pure; many nodes have the same one, and it may be long."""
    entries = {path: (sha256, mode, size) for path, sha256, mode, size in json.loads(manifest)["files"]}
    paths = {sha256: path for path, (sha256, _, _) in entries.items()}
    return Base(digest=hashlib.sha256(manifest).hexdigest(), entries=entries, paths=paths)
