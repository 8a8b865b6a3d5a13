"""A tree: files and folders for nodes, named by their content, and the archive that carries them.

On a node, node/setup/place_tree.py unpacks it to ~/.cluster/tree/DIGEST/.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from msgspec import Struct

from bootstrap.environment.file_cache import BundleFile, find_digest
from foundation.errors import ClusterError

PLAIN = 0o644
EXECUTABLE = 0o755
KEPT_TREES = 20
"""How many older trees stay on a node: a job that waits in the queue copies its tree only when it starts."""
FORGOTTEN_AFTER_S = 24 * 3600.0


class TreeFile(Struct, frozen=True, kw_only=True):
    """One file of a tree.

    path: its path in the tree, relative, with `/`, in UTF-8. sha256: in lower-case hexadecimal. mode: PLAIN or
    EXECUTABLE. source: the file on this machine, or the bytes.
    """

    path: str
    sha256: str
    size_bytes: int
    mode: int
    source: Path | bytes


class Tree(Struct, frozen=True, kw_only=True):
    """Files in the order of their paths, and the empty folders. make_tree creates it.

    digest: the SHA-256, in lower-case hexadecimal, of paths, contents and modes.
    """

    files: tuple[TreeFile, ...]
    folders: tuple[str, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size_bytes for file in self.files)


def make_tree(files: Iterable[TreeFile], folders: Iterable[str] = ()) -> Tree:
    """The tree of these files and empty folders, which may be in any order. Pure."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    empty = tuple(sorted(folders))
    entries = [[file.path, file.sha256, file.mode, file.size_bytes] for file in ordered]
    manifest = json.dumps({"files": entries, "folders": empty}, separators=(",", ":")).encode()
    return Tree(files=ordered, folders=empty, digest=hashlib.sha256(manifest).hexdigest())


def file_of_bytes(path: str, data: bytes) -> TreeFile:
    """A file of a tree from its bytes; executable if they begin with `#!`. Pure."""
    return TreeFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        mode=EXECUTABLE if data.startswith(b"#!") else PLAIN,
        source=data,
    )


class TreeArchives:
    """The archives of one command, each written once for all nodes. Safe to use from any thread.

    A context manager that removes them at its end. cache: foundation.user_folders.cache_folder(), whose disk holds
    them. trees: all trees that the nodes keep after this command.
    """

    def __init__(self, trees: Sequence[Tree], *, cache: Path) -> None:
        self._keep = sorted({tree.digest for tree in trees})
        self._root = cache / "archives"
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], BundleFile] = {}
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def write(self, tree: Tree) -> tuple[BundleFile, dict[str, Any]]:
        """Writes the archive of a tree, once. Returns it, and the task for an agent. Raises ClusterError, OSError."""
        with self._lock:
            if self._folder is None:
                self._folder = _make_folder(self._root)
            key = (tree.digest, id(tree))  # runtimes for different Pythons have the same name
            if key not in self._files:
                self._files[key] = write_archive(tree, Path(tempfile.mkdtemp(dir=self._folder)))
            file = self._files[key]
        return file, {
            "kind": "tree",
            "what": "unpacking files",
            "folder": "tree",
            "digest": tree.digest,
            "archive": f"files/{file.sha256}/{file.name}",
            "keep": self._keep,
            "newest": KEPT_TREES,
        }


def _make_folder(root: Path) -> Path:
    """Creates a folder for this command. Removes old folders that killed commands have left. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        with suppress(FileNotFoundError):  # another command has just ended
            if time.time() - path.stat().st_mtime > FORGOTTEN_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=root))


def write_archive(tree: Tree, folder: Path) -> BundleFile:
    """Writes a tree as a .tar.gz file to a folder. The same tree gives the same bytes.

    Raises ClusterError if a file has changed since the tree was made, and OSError.
    """
    path = folder / f"tree-{tree.digest[:12]}.tar.gz"
    with (
        path.open("wb") as raw,
        # No name and no time, which would change the bytes. Level 1 compresses about 100 MB/s, more than an uplink.
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive,
    ):
        for name in tree.folders:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, EXECUTABLE
            archive.addfile(member)
        for file in tree.files:
            _add_file(archive, file)
            archive.members = []  # type: ignore[attr-defined] # tarfile keeps all members: 100 MB for 100 000 files
    return BundleFile(path=path, sha256=find_digest(path), size_bytes=path.stat().st_size)


def _add_file(archive: tarfile.TarFile, file: TreeFile) -> None:
    member = tarfile.TarInfo(file.path)
    member.size = file.size_bytes
    member.mode = file.mode
    if isinstance(file.source, bytes):
        archive.addfile(member, io.BytesIO(file.source))
        return
    try:
        stream = file.source.open("rb")
    except OSError as error:
        raise _changed(file, error.strerror) from error
    with stream:
        if os.fstat(stream.fileno()).st_size < file.size_bytes:
            raise _changed(file, "it is shorter now")
        hashed = _HashedReader(stream)
        archive.addfile(member, hashed)  # not what a program has added since, such as the output of this command
        if hashed.digest.hexdigest() != file.sha256:
            raise _changed(file, "its content has changed")


class _HashedReader:
    """Hashes what is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data


def _changed(file: TreeFile, why: str | None) -> ClusterError:
    return ClusterError(
        f"{file.path!r} has changed while files were being sent: {why}",
        hint="run the command again when nothing writes to it, or leave it out with [bootstrap] exclude",
    )
