"""What this machine remembers of trees: files' hashes, so that a large folder is not read each time, and manifests.

All of it can be lost or damaged: then files are hashed anew, and a tree is sent as a whole.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bootstrap.tree import Base, Tree, parse_base
from provision.errors import ClusterError
from provision.whole_file import write_whole

MANIFESTS = 64
SETTLED_NS = 2_000_000_000
"""A file that was changed this shortly before it is hashed could change again without a trace: file systems' clocks
tick as seldom as every two seconds (git's index has the same problem, and calls such entries racy)."""

Key = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """A file's content: its SHA-256 in lower-case hexadecimal, and its size."""

    sha256: str
    size_bytes: int


class HashCache:
    """The SHA-256 of the files below one folder, known by size, times and inode. Nothing is kept until `save`.

    ctime is among the times: it moves with every change of the content, and no program can set it back.
    """

    def __init__(self, cache: Path, root: Path) -> None:
        self._path = cache / "hashes" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self._known = _read_entries(self._path)
        self._seen: dict[str, tuple[Key, str]] = {}

    def knows(self, path: str, status: os.stat_result) -> bool:
        """Whether the file need not be read."""
        return self._known.get(path, (None, ""))[0] == _key(status)

    def hash_file(self, path: str, file: Path, status: os.stat_result) -> Hashed:
        """The content of `file`, which is known as `path` here and has this status.

        Raises ClusterError when it cannot be read, or is written to meanwhile.
        """
        if self.knows(path, status):
            self._seen[path] = self._known[path]
            return Hashed(sha256=self._known[path][1], size_bytes=status.st_size)
        try:
            with file.open("rb") as stream:
                before = os.fstat(stream.fileno())
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                after = os.fstat(stream.fileno())
        except OSError as error:
            raise ClusterError(
                f"{str(file)!r} cannot be read: {error.strerror}",
                hint="mend that, or leave it out with [bootstrap] exclude",
            ) from error
        if _key(before) != _key(after):
            raise ClusterError(
                f"{str(file)!r} is being written to: it changed while it was read",
                hint="run the command again when it is done, or leave it out with [bootstrap] exclude",
            )
        if time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > SETTLED_NS:
            self._seen[path] = (_key(after), digest)
        return Hashed(sha256=digest, size_bytes=after.st_size)

    def save(self) -> None:
        """Remember what was hashed since this was made, and forget the rest."""
        if self._seen != self._known:
            entries = json.dumps({path: [*key, digest] for path, (key, digest) in self._seen.items()}).encode()
            _write(self._path, hashlib.sha256(entries).hexdigest().encode() + b"\n" + entries)


def _key(status: os.stat_result) -> Key:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read_entries(path: Path) -> dict[str, tuple[Key, str]]:
    try:
        check, _, entries = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if check != hashlib.sha256(entries).hexdigest().encode():
        return {}
    return {
        name: ((device, inode, size, modified, changed), digest)
        for name, (device, inode, size, modified, changed, digest) in json.loads(entries).items()
    }


def remember_tree(tree: Tree, *, cache: Path) -> None:
    """Keep a tree's manifest, before nodes get the tree: later ones can then be made from it."""
    folder = cache / "trees"
    path = folder / tree.digest
    if _read_manifest(path) == tree.manifest:
        with suppress(OSError):  # a cache that cannot be written to makes the next push larger, and no more
            path.touch()
        return
    _write(path, tree.manifest)
    with suppress(OSError):
        for old in sorted(folder.iterdir(), key=_age, reverse=True)[MANIFESTS:]:
            old.unlink()


def find_bases(digests: Iterable[str], *, cache: Path) -> tuple[Base, ...]:
    """Those of the trees whose manifests are still known here, as bases for plan_pack, in the order of their digests.

    digests: NodeFacts.trees, whatever stands there.
    """
    bases = []
    for digest in sorted(digests):
        manifest = _read_manifest(cache / "trees" / digest)
        if manifest is not None:
            bases.append(parse_base(manifest))
    return tuple(bases)


def _read_manifest(path: Path) -> bytes | None:
    """A manifest that is what its name says, or None."""
    try:
        manifest = path.read_bytes()
    except OSError:
        return None
    return manifest if hashlib.sha256(manifest).hexdigest() == path.name else None


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _write(path: Path, data: bytes) -> None:
    # A cache that cannot be written to (a full disk, a home that is read-only) costs time the next time, and no more.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
