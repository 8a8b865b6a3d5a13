"""The file that a download is written to before it gets its name: beside it, locked, found again by the next run."""

import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from provision.errors import ClusterError
from train.s3.crc import crc32
from train.s3.plan import Download

_PREFIX = ".cluster-get-"
_DONE = b"done"
_RECORD_BYTES = len(_DONE) + 4


class Landing:
    """A download's bytes, and behind them a record for every piece that is there, with its CRC-32.

    A record is written after its piece, so that what a killed run leaves behind is known to be right. Behind the bytes
    and not in a file of its own: one rename, or one deletion, and nothing is left.
    """

    def __init__(self, download: Download) -> None:
        """Open it, or make it, with the folder that it is in. Raises ClusterError, OSError."""
        self._download = download
        if download.destination.is_dir():
            raise ClusterError("there is a folder of this name")
        download.destination.parent.mkdir(parents=True, exist_ok=True)
        self._path = landing_path(download)
        while True:
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(self.descriptor):
                os.close(self.descriptor)
                raise ClusterError("another run writes this file now")
            if os.fstat(self.descriptor).st_nlink:
                return
            os.close(self.descriptor)  # another run has deleted it before it was locked

    def read_record(self, number: int) -> int | None:
        """The CRC-32 of a piece that was written, by whatever run."""
        record = os.pread(self.descriptor, _RECORD_BYTES, self._download.size_bytes + number * _RECORD_BYTES)
        return int.from_bytes(record[len(_DONE) :], "big") if record.startswith(_DONE) else None

    def record(self, number: int, crc: int) -> None:
        """A piece is there."""
        _write(self.descriptor, _DONE + crc.to_bytes(4, "big"), self._download.size_bytes + number * _RECORD_BYTES)

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Bytes of the object."""
        _write(self.descriptor, memoryview(data), begin)

    def forget(self) -> None:
        """Nothing in it counts."""
        # ext4 writes a file that was cut to nothing to the disk when it is closed, also one that was empty before.
        if os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, 0)

    def close_records(self) -> None:
        """All of it is there: it holds the object's bytes and nothing else."""
        os.ftruncate(self.descriptor, self._download.size_bytes)

    def publish(self) -> None:
        """It is right: give it its name. Raises OSError."""
        self.close_records()
        os.fchmod(self.descriptor, 0o666 & ~_umask())
        self._path.replace(self._download.destination)
        os.close(self.descriptor)

    def leave(self) -> None:
        """Until a later run."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """Nobody wants it."""
        self._path.unlink(missing_ok=True)
        os.close(self.descriptor)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path


def landing_path(download: Download) -> Path:
    """Where a download is written to. The same for the same content at the same place. Pure."""
    what = f"{download.source} {download.etag} {download.destination.name}"
    name = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return download.destination.parent / f"{_PREFIX}{name}"


def sweep(downloads: Iterable[Download], places: Iterable[Path]) -> None:
    """Delete what runs that were killed have left in these folders, but for what these downloads go on with."""
    wanted = {landing_path(download) for download in downloads}
    for folder in set(places):
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            left = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
        for path in left:
            if path not in wanted:
                _remove_if_nobodys(path)


def _remove_if_nobodys(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return  # its run has done with it
    if _lock(descriptor):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def checksum(descriptor: int, begin: int, length: int) -> int:
    """The CRC-32 of bytes of a file, or of fewer where it ends."""
    block = memoryview(bytearray(min(2**18, max(length, 1))))
    crc = 0
    while length and (count := os.preadv(descriptor, [block[: min(length, len(block))]], begin)):
        crc = crc32(block[:count], crc)
        begin, length = begin + count, length - count
    return crc


def _write(descriptor: int, data: bytes | memoryview, begin: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, begin)
        view, begin = view[written:], begin + written


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
