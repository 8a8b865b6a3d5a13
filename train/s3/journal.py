"""Which uploads in parts this user has begun on this machine, so that the next run can go on with them or end them.

S3 keeps the parts of an upload that nobody completes, and bills for them, and does not tell whose they are. So a file
in the user's state directory says what is begun, before it is begun. While the upload runs, the file is locked: an
upload whose file can be locked is nobody's any more.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from provision.errors import ClusterError
from provision.progress import Event, Report
from provision.user_folders import state_folder

_NEW_S = 1.0
"""For so long an empty file may be one that is just being made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """An upload.

    endpoint: of which S3. upload_id: None where it was not known yet; then `others` are those of this key that had been
    there before, None where S3 did not tell.
    """

    endpoint: str
    bucket: str
    key: str
    source: str
    size_bytes: int
    mtime_ns: int
    others: Sequence[str] | None
    upload_id: str | None = None

    def is_of(self, source: Path) -> bool:
        """Whether S3 has begun it, with this file as it is now. Raises OSError."""
        status = source.stat()
        same = (self.size_bytes, self.mtime_ns) == (status.st_size, status.st_mtime_ns)
        return self.upload_id is not None and same and self.source == str(source.absolute())


class Entry:
    """A file of the journal, which this process holds: a line for what is begun, and a line for the id S3 gave it."""

    def __init__(self, path: Path, descriptor: int, begun: Begun) -> None:
        self._path = path
        self._descriptor = descriptor
        self.begun = begun

    def note_id(self, upload_id: str) -> None:
        """S3 has begun it. Raises OSError."""
        self.begun = replace(self.begun, upload_id=upload_id)
        os.write(self._descriptor, f"{upload_id}\n".encode())

    @property
    def age_s(self) -> float:
        """For how long nobody has gone on with it. Raises OSError."""
        return time.time() - os.fstat(self._descriptor).st_mtime

    def touch(self) -> None:
        """It is gone on with. Raises OSError."""
        os.utime(self._descriptor)

    def release(self) -> None:
        """Leave it to a later run."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """There is nothing left to look after."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class Journal:
    """A folder with a file for each upload."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, begun: Begun) -> Entry:
        """Note an upload that is about to begin. Raises ClusterError where the folder cannot be written to."""
        path = self._folder / f"{uuid4().hex}.upload"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            # Another run may look at it before it is locked: it finds it empty, and leaves it for _NEW_S.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, f"{json.dumps(asdict(begun))}\n".encode())
        except OSError as error:
            raise ClusterError(
                f"{self._folder}: uploads that are begun cannot be noted here: {error.strerror}",
                hint="set XDG_STATE_HOME to a folder that can be written to",
            ) from error
        return Entry(path, descriptor, begun)

    def take_abandoned(self, *, endpoint: str, report: Report) -> Iterator[Entry]:
        """Every upload to this S3 that no process is at work with; it is this one's from now on.

        What cannot be read, as it was damaged or a newer program wrote it, is told of and left alone.
        """
        for path in sorted(self._folder.glob("*.upload")):
            try:
                entry = _take(path)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not as this program writes it"
                what = f"this note of an interrupted upload cannot be read, and is left alone: {reason}"
                report(Event(kind="warn", what=what, where=str(path)))
                continue
            if entry is None:
                continue
            if entry.begun.endpoint == endpoint:
                yield entry
            else:
                entry.release()


def find_journal() -> Journal:
    """The user's."""
    return Journal(state_folder() / "uploads")


def _take(path: Path) -> Entry | None:
    """The file, locked; None where another process has it, or had it just now. Raises OSError, ValueError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return None
    entry = None
    try:
        entry = _lock(path, descriptor)
    finally:
        if entry is None:
            os.close(descriptor)
    return entry


def _lock(path: Path, descriptor: int) -> Entry | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    status = os.fstat(descriptor)
    if not status.st_nlink:
        return None  # another process has just done with it
    document, _, rest = os.pread(descriptor, status.st_size, 0).decode().partition("\n")
    if not document:
        if time.time() - status.st_mtime > _NEW_S:
            path.unlink(missing_ok=True)  # its process was killed before anything was begun
        return None
    upload_id, ended, _ = rest.partition("\n")
    return Entry(path, descriptor, replace(_parse(document), upload_id=upload_id if ended else None))


def _parse(document: str) -> Begun:
    """Raises ValueError."""
    try:
        begun = Begun(**json.loads(document))
    except TypeError as error:
        raise ValueError(str(error)) from error
    words = (begun.endpoint, begun.bucket, begun.key, begun.source)
    numbers = (begun.size_bytes, begun.mtime_ns)
    others = begun.others if begun.others is not None else []
    if not all(isinstance(word, str) for word in words) or not all(isinstance(number, int) for number in numbers):
        raise ValueError("a text or a number is none")
    if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
        raise ValueError("the other uploads are no list of texts")
    return begun
