"""The objects of bench/s3/sink.py, with the ETags and checksums of the bytes that it serves."""

import base64
import hashlib
import mmap
import threading
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

SMALL_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """An object. Its content is the beginning of `file`, whose bytes are in `content`."""

    size_bytes: int
    etag: str
    crc32: str | None
    file: BinaryIO
    content: memoryview


def store_file(path: Path) -> Stored:
    """Returns a file as an object that was uploaded in parts of 8 MiB. Reads the file once."""
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
    """The objects and uploads of a sink.

    objects: by "/bucket/key". answer: the object that provides the content of all uploads, or None for a world of
    files, which cannot be uploaded to. uploads: the bytes received, by upload id.
    """

    answer: Stored | None = None
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    received: int = 0
    etags: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, name: str, size_bytes: int) -> None:
        """Records an uploaded object by its size. Its bytes have been discarded."""
        if self.answer is None:
            raise ConnectionAbortedError("nothing can be put to a world of files")
        crc32 = self.answer.crc32 if size_bytes == self.answer.size_bytes else None
        etag = self.answer.etag
        if size_bytes <= SMALL_BYTES:  # uploaded by one request: the ETag is the MD5
            if size_bytes not in self.etags:
                self.etags[size_bytes] = f'"{hashlib.md5(self.answer.content[:size_bytes]).hexdigest()}"'
            etag = self.etags[size_bytes]
        self.objects[name] = replace(self.answer, size_bytes=size_bytes, etag=etag, crc32=crc32)

    def list(self, bucket: str, prefix: str, delimiter: str) -> tuple[list[tuple[str, Stored]], list[str]]:
        """Returns the objects with a prefix in the order of their keys, and the common prefixes up to the delimiter."""
        begin = len(bucket) + 2
        found, folders = [], set()
        with self.lock:  # sort only these, because earlier rounds have left many other objects
            below = [item for item in self.objects.items() if item[0].startswith(f"/{bucket}/{prefix}")]
        for name, stored in sorted(below, key=lambda item: item[0]):
            key = name[begin:]
            first, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                folders.add(prefix + first + slash)
            else:
                found.append((key, stored))
        return found, sorted(folders)


def store_folder(folder: Path, url: str) -> World:
    """Returns a world with a folder's files, below s3://bucket/prefix/."""
    below = "/" + url.removeprefix("s3://")
    return World(objects={below + path.name: store_file(path) for path in sorted(folder.iterdir())})
