"""A part of a local file, as the body of a request: read as it is sent, in little memory."""

import base64
import hashlib
import io
import os
from collections.abc import Callable, Iterator

from provision.errors import ClusterError
from train.s3.crc import crc32

_BLOCK_BYTES = 512 * 2**10
_COPY_IT = "like files in /proc and /sys: copy it to a plain file first"


class ChangedError(ClusterError):
    """The file is not the one that was begun with: what is in S3 of it is of no use."""


class Section(io.RawIOBase):
    """`length` bytes of a file from `begin` on. Any thread may have one of its own.

    check: called before every block, to be stopped by.
    """

    def __init__(self, descriptor: int, begin: int, length: int, check: Callable[[], None]) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._begin = begin
        self.length = length
        self._check = check
        self._at = 0
        self._block = memoryview(bytearray(min(_BLOCK_BYTES, length)))

    def blocks(self) -> Iterator[memoryview]:
        """All of it from the beginning; each block is good until the next one is asked for."""
        self._at = 0
        while block := self.read():
            yield block

    def read(self, _size: int = -1) -> memoryview:
        """The next block, empty at the end.

        It may be larger than asked for: HTTP's library asks for 16 KiB at a time and sends whatever it gets, and a
        GiB in pieces of 16 KiB would keep a core busy for a second.
        """
        self._check()
        wanted = min(len(self._block), self.length - self._at)
        count = os.preadv(self._descriptor, [self._block[:wanted]], self._begin + self._at) if wanted else 0
        if count < wanted:
            size_bytes = os.fstat(self._descriptor).st_size
            if size_bytes < self._begin + self._at + wanted:
                raise ChangedError("it was changed while it was read: it is shorter now")
            raise ChangedError(f"it has fewer than the {size_bytes} bytes that its size says, {_COPY_IT}")
        self._at += count
        return self._block[:count]

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is: a request that is repeated begins anew."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As files have it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """As files have it."""
        return self._at

    def crc32(self) -> int:
        """Of its content as it is now."""
        crc = 0
        for block in self.blocks():
            crc = crc32(block, crc)
        self._at = 0
        return crc

    def md5(self) -> str:
        """Of its content as it is now."""
        digest = hashlib.md5(usedforsecurity=False)
        for block in self.blocks():
            digest.update(block)
        self._at = 0
        return digest.hexdigest()


def check_unchanged(before: os.stat_result, after: os.stat_result) -> None:
    """Raises ChangedError."""
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ChangedError("it was changed while it was read")


def check_end(descriptor: int, before: os.stat_result) -> None:
    """Raises ChangedError where the file goes on behind the size that it had, or always says that it has."""
    if has_more(descriptor, before.st_size):
        check_unchanged(before, os.fstat(descriptor))
        raise ChangedError(f"it has more than the {before.st_size} bytes that its size says, {_COPY_IT}")


def has_more(descriptor: int, size_bytes: int) -> bool:
    """Whether a file has bytes behind these."""
    return bool(os.pread(descriptor, 1, size_bytes))


def encode_crc32(crc: int) -> str:
    """As S3 writes it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
