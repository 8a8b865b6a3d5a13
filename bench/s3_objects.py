"""What bench/s3_sink.py knows: objects by their names, with what S3 would say about the bytes that it answers with."""

import base64
import hashlib
import mmap
import threading
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

MOST_KEPT_ETAGS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """An object: its size, its ETag and checksum, and the file whose beginning it is. content: that file's bytes."""

    size_bytes: int
    etag: str
    crc32: str | None
    file: BinaryIO
    content: memoryview


def store_file(path: Path) -> Stored:
    """A file as an object that was put in parts of 8 MiB. It is read once."""
    crc, parts = 0, b""
    file = path.open("rb")  # stays open as long as the server runs
    while piece := file.read(8 << 20):
        crc = zlib.crc32(piece, crc)
        parts += hashlib.md5(piece).digest()
    return Stored(
        size_bytes=file.tell(),
        etag=f'"{hashlib.md5(parts).hexdigest()}-{len(parts) // 16}"',
        crc32=base64.b64encode(crc.to_bytes(4, "big")).decode(),
        file=file,
        content=memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)),
    )


@dataclass
class World:
    """What there is. objects: by "/bucket/key". answer: what stands for what is put; None for a world of files."""

    answer: Stored | None = None
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    received: int = 0
    etags: dict[tuple[int, int, bytes], str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, name: str, size_bytes: int) -> None:
        """Note what was put; its bytes are gone."""
        if self.answer is None:
            raise ConnectionAbortedError("nothing can be put to a world of files")
        crc32 = self.answer.crc32 if size_bytes == self.answer.size_bytes else None
        self.objects[name] = replace(self.answer, size_bytes=size_bytes, crc32=crc32)

    def find_etag(self, body: memoryview) -> str:
        """The MD5 of a small body. Benchmarks put the same bytes again and again: a CRC tells them, much sooner."""
        known = (len(body), zlib.crc32(body), bytes(body[:16]))
        etag = self.etags.get(known)
        if etag is None:
            etag = hashlib.md5(body).hexdigest()
            if len(self.etags) < MOST_KEPT_ETAGS:
                self.etags[known] = etag
        return etag

    def list(self, bucket: str, prefix: str, delimiter: str) -> tuple[list[tuple[str, Stored]], list[str]]:
        """The objects below a prefix in the order of their keys, and the folders that a delimiter makes of others."""
        begin = len(bucket) + 2
        found, folders = [], set()
        for name, stored in sorted(self.objects.items()):
            key = name[begin:]
            if not name.startswith(f"/{bucket}/") or not key.startswith(prefix):
                continue
            first, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                folders.add(prefix + first + slash)
            else:
                found.append((key, stored))
        return found, sorted(folders)


def store_folder(folder: Path, url: str) -> World:
    """A world of a folder's files, below s3://bucket/prefix/."""
    below = "/" + url.removeprefix("s3://")
    return World(objects={below + path.name: store_file(path) for path in sorted(folder.iterdir())})
