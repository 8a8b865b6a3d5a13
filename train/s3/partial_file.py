"""The temporary file that a download is written to, beside its destination, before it gets that name.

Its name is random, and it is made anew, for its owner alone: in a folder that others may write to, too, nobody can
prepare it. The journal knows it, so that the next run resumes it or deletes it.
"""

import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from provision.errors import ClusterError
from train.s3.crc import crc32
from train.s3.download_journal import DownloadJournal, Partial
from train.s3.local_folder import LocalFolder
from train.s3.plan import Download

_DONE = b"done"
_RECORD_BYTES = len(_DONE) + 4


class PartialFiles:
    """Makes the temporary files of a run, or resumes those of earlier runs. For any thread."""

    def __init__(self, folder: LocalFolder, journal: DownloadJournal) -> None:
        self.folder = folder
        self.journal = journal
        self._earlier: dict[Path, Partial] = {}  # by destination
        self.mode = 0o666 & ~_find_umask()

    def find_earlier(self, planned: Sequence[Download], to_copy: Iterable[Download]) -> None:
        """Find what killed runs have left in the folders of these downloads: it is resumed, or else deleted here.

        Nothing is deleted that has become one of the destinations. Raises OSError.
        """
        abandoned = self.journal.take_abandoned()
        if not abandoned:
            return
        wanted = {item.destination: item for item in to_copy}
        kept = {item.destination for item in planned}
        parents = {str(self._find_real_folder(path)): path for path in {path.parent for path in kept}}
        for notes in abandoned:
            for partial in notes.partials:
                parent = parents.get(partial.folder)
                if parent is not None:
                    if parent / partial.name not in kept:  # else an object has that very name
                        self._take(partial, parent, wanted.get(parent / partial.destination))
                    notes.drop(partial)
                elif Path(partial.folder).is_dir() and not os.path.lexists(partial.path):
                    notes.drop(partial)  # it had got its name, or somebody has deleted it
            notes.close()

    def _take(self, partial: Partial, parent: Path, download: Download | None) -> None:
        """Resume it with this download, or delete it."""
        if download is not None and partial == self._note(download, partial.name):
            found = self._earlier.setdefault(download.destination, partial)
            if found is partial:
                self.journal.begin(partial)
                return
            if found == partial:
                return  # noted twice, by a run that was killed when it had just taken it over
        self._remove(parent / partial.name)

    def _remove(self, path: Path) -> None:
        try:
            parent = self.folder.open_parent(path)
        except FileNotFoundError:
            return
        try:
            _remove_file(path.name, parent)
        finally:
            os.close(parent)

    def open(self, download: Download) -> "PartialFile":
        """The download's, with the folder that it is in. Raises ClusterError, OSError."""
        parent = self.folder.open_parent(download.destination, create=True)
        try:
            _refuse_folder(download.destination.name, parent)
            earlier = self._earlier.pop(download.destination, None)
            if earlier is not None:
                descriptor = _open_own(earlier.name, parent)
                if descriptor is not None:
                    return PartialFile(self, download, earlier, parent, descriptor)
                _remove_file(earlier.name, parent)
                self.journal.end(earlier)
            partial = self._note(download, f".cluster-get-{secrets.token_hex(16)}")
            self.journal.begin(partial)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(partial.name, flags, 0o600, dir_fd=parent)
            except OSError:
                self.journal.end(partial)
                raise
            return PartialFile(self, download, partial, parent, descriptor)
        except BaseException:
            os.close(parent)
            raise

    def close(self) -> None:
        """Leave what was not finished to a later run."""
        self.journal.close()

    def _note(self, download: Download, name: str) -> Partial:
        return Partial(
            folder=str(self._find_real_folder(download.destination.parent)),
            name=name,
            destination=download.destination.name,
            source=str(download.source),
            etag=download.etag,
            size_bytes=download.size_bytes,
        )

    def _find_real_folder(self, folder: Path) -> Path:
        return self.folder.real_path / folder.relative_to(self.folder.path)


class PartialFile:
    """A download's bytes, and behind them a record for every part that is there, with its CRC-32.

    A record is written after its part, so that what a killed run leaves behind is known to be right. Behind the bytes
    and not in a file of its own: one rename, or one deletion, and nothing is left.
    """

    def __init__(self, files: PartialFiles, download: Download, partial: Partial, parent: int, descriptor: int) -> None:
        """parent: a descriptor of the folder that it is in."""
        self._files = files
        self._download = download
        self._partial = partial
        self._parent = parent
        self.descriptor = descriptor

    def read_record(self, number: int) -> int | None:
        """The CRC-32 of a part that was written, by whatever run."""
        record = os.pread(self.descriptor, _RECORD_BYTES, self._download.size_bytes + number * _RECORD_BYTES)
        return int.from_bytes(record[len(_DONE) :], "big") if record.startswith(_DONE) else None

    def record(self, number: int, crc: int) -> None:
        """A part is there."""
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
        if os.fstat(self.descriptor).st_size != self._download.size_bytes:
            os.ftruncate(self.descriptor, self._download.size_bytes)

    def publish(self) -> None:
        """It is right: give it its name. Raises ClusterError where somebody has replaced it, OSError."""
        self.close_records()
        mine, found = os.fstat(self.descriptor), _find(self._partial.name, self._parent)
        if found is None or (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino):
            raise ClusterError("somebody has moved or replaced its temporary file while it was written")
        os.fchmod(self.descriptor, self._files.mode)
        name = self._download.destination.name
        os.rename(self._partial.name, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._files.journal.end(self._partial)
        self._close()

    def leave(self) -> None:
        """Until a later run."""
        self._close()

    def remove(self) -> None:
        """Nobody wants it."""
        _remove_file(self._partial.name, self._parent)
        self._files.journal.end(self._partial)
        self._close()

    def _close(self) -> None:
        os.close(self.descriptor)
        os.close(self._parent)


def _find(name: str, parent: int) -> os.stat_result | None:
    """What is called so, links not followed."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_own(name: str, parent: int) -> int | None:
    """A temporary file of an earlier run; None where there is none any more, or something else is called so."""
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None  # gone, or a link
    status = os.fstat(descriptor)
    # Another user's could be changed by its owner later on, and one with two names may be a file of ours elsewhere.
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return None


def _remove_file(name: str, parent: int) -> None:
    """Delete a temporary file; what somebody has put in its place stays, unless it is a file as well."""
    found = _find(name, parent)
    if found is not None and stat.S_ISREG(found.st_mode):
        os.unlink(name, dir_fd=parent)


def _refuse_folder(name: str, parent: int) -> None:
    """Raises ClusterError where a folder, or a link to one, is called so."""
    try:
        status = os.stat(name, dir_fd=parent)
    except OSError:
        return  # nothing, or a link to nothing: replaced
    if stat.S_ISDIR(status.st_mode):
        raise ClusterError("there is a folder of this name")


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


def _find_umask() -> int:
    """The process's umask, which can only be read by setting it, so not while threads make files."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
