"""A folder of files that every node gets, packed as one file that is named by its content."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTree:
    """Files by their paths in the tree (relative, with `/`). On a node it lies at ~/.cluster/tree/DIGEST/."""

    content: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 of the packed tree, in lower-case hexadecimal."""
        return hashlib.sha256(self.pack()).hexdigest()

    def pack(self) -> bytes:
        """The tree as a tar file, the same bytes for the same content."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, data in sorted(self.content.items()):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                entry.mode = 0o755 if data.startswith(b"#!") else 0o644
                archive.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()


def read_tree(root: Path, *, under: str = "") -> dict[str, bytes]:
    """The Python files below a folder, by their paths below it, with `under` in front. Raises OSError."""
    prefix = f"{under}/" if under else ""
    return {
        prefix + path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
