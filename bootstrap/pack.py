"""What travels of a tree: one file with the contents that a node lacks, made against a tree that the node has.

A pack is a tar file, compressed with gzip where that pays. Its members, in this order:

    delta     {"base": the digest of that tree, or null, "removed": [path, ...], "files": [[path, SHA-256, mode, size],
              ...], "folders": [path, ...]}: what makes the tree's manifest (bootstrap/tree.py) from the base's
    SHA256    a content, once however many files have it, in the order of the names

bootstrap/node/unpack_tree.py makes the tree from it. The same tree against the same base is the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bootstrap.shelf import BundleFile
from bootstrap.tree import Base, Tree, TreeFile
from provision.errors import ClusterError

READ_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 20
SAMPLE_OF_EACH_BYTES = 1 << 16
WORTHWHILE_RATIO = 0.9
"""Level 1 of gzip takes some 100 MB/s, a home's uplink seldom as much: what shrinks by a tenth is sent compressed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """What one node gets of a tree; nodes that have the same base share it. Made by plan_pack.

    against: the tree that the node has, or None: then all of it travels.
    contents: a file for each content that travels, in the order of their SHA-256.
    """

    tree: Tree
    against: Base | None
    contents: tuple[TreeFile, ...]

    @property
    def base(self) -> str | None:
        """The digest of the tree that the node has."""
        return self.against.digest if self.against is not None else None

    @property
    def delta(self) -> bytes:
        """What makes the tree's manifest from that of the base, in JSON."""
        known = self.against.entries if self.against is not None else {}
        kept = {file.path for file in self.tree.files}
        made = [[f.path, f.sha256, f.mode, f.size_bytes] for f in self.tree.files if known.get(f.path) != _entry(f)]
        delta = {
            "base": self.base,
            "removed": sorted(path for path in known if path not in kept),
            "files": made,
            "folders": self.tree.folders,
        }
        return json.dumps(delta, separators=(",", ":")).encode()

    @property
    def size_bytes(self) -> int:
        """What travels, before it is compressed."""
        return sum(file.size_bytes for file in self.contents)

    def order(self, file: BundleFile, *, keep: Sequence[str]) -> dict[str, Any]:
        """The task for the node: make the tree from `file`, which is this pack.

        keep: digests of the trees that are not to be removed for age; this one is kept anyway.
        """
        return {
            "kind": "tree",
            "what": "putting files in place",
            "digest": self.tree.digest,
            "pack": f"files/{file.sha256}/{file.name}",
            "keep": sorted({self.tree.digest, *keep}),
        }


def plan_pack(tree: Tree, bases: Sequence[Base]) -> Pack:
    """Choose the base that leaves the fewest bytes to send; none where none leaves fewer than all of them. Pure.

    bases: the trees that a node has complete and this machine knows (bootstrap.tree_cache.find_bases).
    """
    contents = {file.sha256: file for file in tree.files}
    best: Base | None = None
    best_bytes = sum(file.size_bytes for file in contents.values())
    # Of two that are as good the same one for every node, so that they share a pack.
    for base in sorted(bases, key=lambda base: base.digest):
        left = sum(file.size_bytes for sha256, file in contents.items() if sha256 not in base.paths)
        if left < best_bytes:
            best, best_bytes = base, left
    there = best.paths if best is not None else {}
    return Pack(
        tree=tree,
        against=best,
        contents=tuple(contents[sha256] for sha256 in sorted(contents) if sha256 not in there),
    )


def _entry(file: TreeFile) -> tuple[str, int, int]:
    return (file.sha256, file.mode, file.size_bytes)


def write_pack(pack: Pack, folder: Path) -> BundleFile:
    """Write a pack into a folder, which is made if need be; through little memory, whatever its size.

    Raises ClusterError when a file has changed since the tree was read, or the folder's disk does not take it.
    """
    compressed = _pays(pack)
    name = f"tree-{pack.tree.digest[:12]}-{(pack.base or 'whole')[:12]}.tar{'.gz' if compressed else ''}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".packing-")
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        with os.fdopen(handle, "wb") as raw:
            sink = _Sink(raw, folder)
            with _archive(sink, compressed=compressed) as archive:
                _write_members(pack, archive)
            sink.flush()
        path = folder / name
        Path(temporary).replace(path)
        return BundleFile(path=path, sha256=sink.hexdigest(), size_bytes=sink.size_bytes)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _write_members(pack: Pack, archive: tarfile.TarFile) -> None:
    delta = pack.delta
    archive.addfile(_member("delta", len(delta)), io.BytesIO(delta))
    for file in pack.contents:
        with _open(file) as stream:
            source = _Source(stream, file)
            archive.addfile(_member(file.sha256, file.size_bytes), source)  # type: ignore[arg-type]
            source.check()
        archive.members = []  # type: ignore[attr-defined] # it remembers each: 100 MB for 100 000 files


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


@contextmanager
def _archive(sink: "_Sink", *, compressed: bool) -> Iterator[tarfile.TarFile]:
    stream: Any = sink
    if compressed:  # without a name and a time: they would change the bytes
        stream = gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=sink, mtime=0)
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        yield archive
    if compressed:
        stream.close()


@contextmanager
def _open(file: TreeFile) -> Iterator[IO[bytes]]:
    if isinstance(file.source, bytes):
        yield io.BytesIO(file.source)
        return
    try:
        stream = file.source.open("rb")
    except OSError as error:
        raise _changed(file, error.strerror) from error
    with stream:
        yield stream


def _pays(pack: Pack) -> bool:
    """Whether a pack is worth compressing: a sample of it says. Raises ClusterError."""
    sample = pack.delta[:SAMPLE_OF_EACH_BYTES]
    for file in pack.contents:
        if len(sample) >= SAMPLE_BYTES:
            break
        with _open(file) as stream:
            sample += stream.read(SAMPLE_OF_EACH_BYTES) + bytes(2 * tarfile.BLOCKSIZE)  # header and padding
    return len(zlib.compress(sample, 1)) < WORTHWHILE_RATIO * len(sample)


class _Source:
    """A file as tarfile reads it, hashed on its way."""

    def __init__(self, stream: IO[bytes], file: TreeFile) -> None:
        self._stream = stream
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next `size` bytes. Raises ClusterError where there are fewer."""
        try:
            data = self._stream.read(size)
        except OSError as error:
            raise _changed(self._file, error.strerror) from error
        if len(data) < size:
            raise _changed(self._file, "it is shorter now")
        self._hash.update(data)
        return data

    def check(self) -> None:
        """Raises ClusterError when what was read is not what was hashed."""
        if self._hash.hexdigest() != self._file.sha256:
            raise _changed(self._file, "its content is another now")


class _Sink:
    """The pack on its way to the disk, hashed and counted."""

    def __init__(self, raw: IO[bytes], folder: Path) -> None:
        self._raw = raw
        self._folder = folder
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        """Take bytes. Raises ClusterError."""
        try:
            self._raw.write(data)
        except OSError as error:
            raise _cannot_write(self._folder, error) from error
        self._hash.update(data)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Hand it all to the kernel. Raises ClusterError."""
        try:
            self._raw.flush()
        except OSError as error:
            raise _cannot_write(self._folder, error) from error

    def tell(self) -> int:
        """How many bytes there are."""
        return self.size_bytes

    def hexdigest(self) -> str:
        """The SHA-256 of all bytes, in lower-case hexadecimal."""
        return self._hash.hexdigest()


def _changed(file: TreeFile, why: str | None) -> ClusterError:
    return ClusterError(
        f"{file.path!r} has changed while files were being sent: {why}",
        hint="run the command again when nothing writes to it, or leave it out with [bootstrap] exclude",
    )


def _cannot_write(folder: Path, error: OSError) -> ClusterError:
    return ClusterError(
        f"{folder}: files for the nodes could not be packed there: {error.strerror}",
        hint="free some space on that disk",
    )
