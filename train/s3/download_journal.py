"""Which temporary files downloads have made: noted before each is made, so that a later run finds what a kill left.

A later run deletes or resumes only what is noted here, and nothing for its name alone: an object or a file of the
user's may be called anything.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from provision.errors import ClusterError
from provision.user_folders import state_folder

_MAX_LINES = 20_000
"""Of one file: a run of a million downloads does not leave them all in one that grows until its end."""
_NEW_S = 60.0
"""For so long an empty file may be one that is just being made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partial:
    """A temporary file. name: random, and so unique. folder: its real path. destination: its later name there."""

    folder: str
    name: str
    destination: str
    source: str
    etag: str
    size_bytes: int

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.folder, self.name)


class Notes:
    """A file of the journal, locked by this process: a line for each temporary file, and one when it is gone."""

    def __init__(self, path: Path, descriptor: int, partials: dict[str, Partial], lines: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._partials = partials  # by name
        self.lines = lines

    @property
    def partials(self) -> Sequence[Partial]:
        """Those that may be there."""
        return tuple(self._partials.values())

    def add(self, partial: Partial) -> None:
        """It is about to be made, or taken over. Raises OSError."""
        self._partials[partial.name] = partial
        self._write(asdict(partial))

    def drop(self, partial: Partial) -> None:
        """It is not there any more, or no longer this file's to note. Raises OSError."""
        del self._partials[partial.name]
        self._write({"gone": partial.name})

    def close(self) -> None:
        """Delete the file if everything noted is gone, else leave it to a later run."""
        if not self._partials:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _write(self, document: dict[str, object]) -> None:
        os.write(self._descriptor, f"{json.dumps(document)}\n".encode())
        self.lines += 1


class DownloadJournal:
    """The user's journal, and the files of it that this run writes. For any thread."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else state_folder() / "downloads"
        self._lock = threading.Lock()
        self._notes: Notes | None = None
        self._full: list[Notes] = []
        self._where: dict[str, Notes] = {}

    def begin(self, partial: Partial) -> None:
        """Note a temporary file that is about to be made. Raises ClusterError where notes cannot be written."""
        try:
            with self._lock:
                notes = self._notes
                if notes is None or notes.lines >= _MAX_LINES:
                    notes = self._begin_file()
                notes.add(partial)
                self._where[partial.name] = notes
        except OSError as error:
            raise ClusterError(
                f"{self._folder}: downloads cannot be noted here: {error.strerror}",
                hint="set XDG_STATE_HOME to a folder that can be written to",
            ) from error

    def end(self, partial: Partial) -> None:
        """It is not there any more: it has got its name, or was deleted. Raises OSError."""
        with self._lock:
            notes = self._where.pop(partial.name)
            notes.drop(partial)
            if notes in self._full and not notes.partials:
                self._full.remove(notes)
                notes.close()

    def close(self) -> None:
        """Leave what is still there to a later run."""
        with self._lock:
            for notes in (*self._full, *([self._notes] if self._notes else [])):
                notes.close()
            self._full, self._notes = [], None

    def _begin_file(self) -> Notes:
        if self._notes is not None and self._notes.partials:
            self._full.append(self._notes)
        elif self._notes is not None:
            self._notes.close()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{uuid4().hex}.download"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Another run may look at it before it is locked: it finds nothing noted, and leaves it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._notes = Notes(path, descriptor, {}, 0)
        return self._notes

    def take_abandoned(self) -> Sequence[Notes]:
        """The notes of runs that are over; the caller closes them. Those of other users' runs are left alone."""
        found = []
        for path in self._list():
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            status = os.fstat(descriptor)
            if status.st_size and status.st_nlink:
                text = path.read_text("utf-8")
                found.append(Notes(path, descriptor, _parse(text), text.count("\n")))
                continue
            if time.time() - status.st_mtime > _NEW_S:
                path.unlink(missing_ok=True)  # its run was killed before anything was noted
            os.close(descriptor)  # else just made, and not locked yet, or just deleted
        return found

    def find_partials(self) -> set[Path]:
        """Every temporary file that may be there, also those of runs that are still at work."""
        found: set[Path] = set()
        for path in self._list():
            try:
                found.update(partial.path for partial in _parse(path.read_text("utf-8")).values())
            except (FileNotFoundError, PermissionError):
                continue  # its run has just ended, or is another user's
        return found

    def _list(self) -> Sequence[Path]:
        return sorted(self._folder.glob("*.download"))


def _parse(text: str) -> dict[str, Partial]:
    """What is noted, by name. A line that a crash has cut off is ignored: its file was not made yet."""
    partials: dict[str, Partial] = {}
    for line in text.splitlines():
        try:
            document = json.loads(line)
            if "gone" in document:
                partials.pop(document["gone"], None)
            else:
                partials[document["name"]] = Partial(**document)
        except (ValueError, TypeError, KeyError):
            continue
    return partials
