"""Carries out uploads and downloads: many files and many parts at once, in little memory, whole files or none.

An object appears in S3 when all of it is there: S3 keeps the parts of an unfinished upload apart. A local file is
written under another name and renamed when all of it is there. What is interrupted is gone on with by the next run.
Every content is compared with a checksum where it arrives. wire.py says what moves what, and why.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from provision.errors import ClusterError, NotFoundError
from train.s3.crew import Crew
from train.s3.download import PartsDownload, explain_missing, get_whole
from train.s3.journal import Entry, Journal, find_journal
from train.s3.lanes import Talk
from train.s3.partial_file import PartialFiles
from train.s3.parts import MAX_PARTS, PART_BYTES, DamagedError, InParts, part_size
from train.s3.plan import Download, Upload
from train.s3.section import ChangedError
from train.s3.small import SmallMoves, is_small, move_side_by_side
from train.s3.upload import PartsUpload, put_whole
from train.s3.url import S3Url
from train.s3.wire import Wire

__all__ = ["MAX_PARTS", "PART_BYTES", "Progress", "Unwatched", "apply", "open_wire", "part_size"]

CONNECTIONS = 8
_DAMAGED_TRIES = 2


class Progress(Protocol):
    """Told what moved, by one thread at a time."""

    def moved(self, size_bytes: int) -> None:
        """So many more bytes arrived."""

    def finished(self, transfer: Upload | Download) -> None:
        """All of a file arrived."""


class Unwatched:
    """A Progress for callers that do not look."""

    def moved(self, size_bytes: int) -> None:
        """Nothing."""

    def finished(self, transfer: Upload | Download) -> None:
        """Nothing."""


def open_wire(*, region: str) -> Wire:
    """For apply."""
    return Wire(region=region, connections=CONNECTIONS)


def apply(
    wire: Wire,
    transfers: Sequence[Upload | Download],
    progress: Progress,
    *,
    earlier: Mapping[S3Url, Entry] | None = None,
    journal: Journal | None = None,
    files: PartialFiles | None = None,
) -> Sequence[Download]:
    """Carry out all transfers; a failed one does not keep the others from being finished.

    earlier: uploads in parts to go on with, by their destination. files: where downloads are written to. Returns the
    downloads of which S3 keeps no checksum that can be compared: their lengths alone were. Raises ClusterError that
    names each file that failed, and why, when the others are done; also one that was forgotten.
    """
    job = _Job(wire, progress, journal or find_journal(), earlier or {}, files)
    try:
        unsure = job.move_small([transfer for transfer in transfers if is_small(transfer)])
        others = [transfer for transfer in transfers if not is_small(transfer)]
        thorough = [*others, *unsure]
        if thorough:
            job.crew.run(partial(job.start, transfer) for transfer in thorough)
    finally:
        job.leave()
    job.find_forgotten(transfers)
    if job.failed:
        listed = "\n  ".join(sorted(job.failed))
        raise ClusterError(
            f"{len(job.failed)} of {len(transfers)} files failed, the others are done:\n  {listed}",
            hint="run the command again",
        )
    return job.unverified


class _Job:
    def __init__(
        self,
        wire: Wire,
        progress: Progress,
        journal: Journal,
        earlier: Mapping[S3Url, Entry],
        files: PartialFiles | None,
    ) -> None:
        self.crew = Crew(CONNECTIONS)
        self.failed: list[str] = []
        self.unverified: list[Download] = []
        self._wire = wire
        self._progress = progress
        self._journal = journal
        self._earlier = earlier
        self._files = files
        self._lock = threading.Lock()
        self._begun: dict[Upload | Download, InParts] = {}
        self._ended: set[int] = set()  # by identity: to hash a transfer takes long

    def find_forgotten(self, transfers: Sequence[Upload | Download]) -> None:
        """None has neither arrived nor failed; else this program is wrong, and must not say that all is done."""
        for transfer in transfers:
            if id(transfer) not in self._ended:
                self.failed.append(_tell(transfer, ClusterError("it was forgotten: an error in this program")))

    def move_small(self, transfers: Sequence[Upload | Download]) -> Sequence[Upload | Download]:
        """Move them as long as that is fast; returns those that are left."""
        moves = SmallMoves(self._wire, self._files)
        left: list[Upload | Download] = []

        def move(transfer: Upload | Download) -> Talk[None]:
            with self.watching(transfer):
                size_bytes = yield from moves.move(transfer)
                if size_bytes is None:
                    left.append(transfer)
                    return
                self.moved(size_bytes)
                self.finished(transfer)

        move_side_by_side(transfers, move)
        return left

    def start(self, transfer: Upload | Download) -> None:
        with self.watching(transfer):
            if transfer.size_bytes > PART_BYTES:
                _Parts(self, transfer, self._in_parts(transfer)).begin()
                return
            if isinstance(transfer, Upload):
                self.moved(put_whole(self._wire, transfer, self.crew.check))
            else:
                files = self._find_files()
                self.moved(get_whole(self._wire, files, transfer, self.crew.check, self.unverified.append))
            self.finished(transfer)

    def _in_parts(self, transfer: Upload | Download) -> InParts:
        if isinstance(transfer, Download):
            return PartsDownload(self._wire, self._find_files(), transfer, self.crew.check, self.unverified.append)
        entry = self._earlier.get(transfer.destination)
        return PartsUpload(self._wire, transfer, self._journal, entry, self.crew.check)

    def _find_files(self) -> PartialFiles:
        if self._files is None:
            raise ValueError("a download, and no folder for its temporary file")
        return self._files

    @contextmanager
    def watching(
        self, transfer: Upload | Download, at_fault: Callable[[Exception], None] | None = None
    ) -> Iterator[None]:
        """Notes what fails."""
        try:
            yield
        except (ClusterError, OSError) as error:
            told = error
            if isinstance(error, NotFoundError) and isinstance(transfer, Download):
                told = explain_missing(self._wire, transfer, error)
            with self._lock:
                self._ended.add(id(transfer))
                self.failed.append(_tell(transfer, told))
            if at_fault is not None:
                at_fault(error)

    def moved(self, size_bytes: int) -> None:
        with self._lock:
            self._progress.moved(size_bytes)

    def finished(self, transfer: Upload | Download) -> None:
        with self._lock:
            self._ended.add(id(transfer))
            if self._begun:  # as above
                self._begun.pop(transfer, None)
            self._progress.finished(transfer)

    def keep(self, transfer: Upload | Download, parts: InParts) -> None:
        with self._lock:
            self._begun[transfer] = parts

    def drop(self, transfer: Upload | Download) -> None:
        with self._lock:
            self._begun.pop(transfer, None)

    def leave(self) -> None:
        """What was begun and not finished, after an interrupt, is left to the next run.

        Where a thread is still at work, all stays open until the process ends: it must not write to another's file.
        """
        if not self.crew.is_idle:
            return
        with self._lock:
            left, self._begun = list(self._begun.values()), {}
        for parts in left:
            parts.give_up(resumable=True)
        if self._files is not None:
            self._files.close()


class _Parts:
    """A transfer in parts, on its way through the crew."""

    def __init__(self, job: _Job, transfer: Upload | Download, parts: InParts) -> None:
        self._job = job
        self._transfer = transfer
        self._parts = parts
        self._lock = threading.Lock()
        self._left = 0
        self._error: Exception | None = None
        self._tries = 0

    def begin(self) -> None:
        numbers = self._parts.begin()
        self._job.keep(self._transfer, self._parts)
        self._go(numbers)

    def _go(self, numbers: Sequence[int]) -> None:
        self._tries += 1
        self._left = len(numbers)
        self._job.crew.add([partial(self._move, number, numbers) for number in numbers])

    def _move(self, number: int, numbers: Sequence[int]) -> None:
        try:
            if self._error is None:
                size_bytes = self._parts.move(number)
                if self._tries == 1:
                    self._job.moved(size_bytes)
        except (ClusterError, OSError) as error:
            self._error = self._error or error
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            with self._job.watching(self._transfer, self._give_up):
                self._end(numbers)

    def _end(self, numbers: Sequence[int]) -> None:
        if self._error is not None:
            raise self._error
        self._job.crew.check()  # what an interrupt has stopped is not completed
        try:
            self._parts.finish()
        except DamagedError as error:
            if self._tries < _DAMAGED_TRIES:
                self._go(numbers)
                return
            raise ClusterError(str(error)) from error
        self._job.finished(self._transfer)

    def _give_up(self, error: Exception) -> None:
        self._job.drop(self._transfer)
        with self._job.watching(self._transfer):
            is_gone = isinstance(self._transfer, Download) and isinstance(error, NotFoundError)
            self._parts.give_up(resumable=not is_gone and not isinstance(error, ChangedError))


def _tell(transfer: Upload | Download, error: ClusterError | OSError) -> str:
    reason = error.strerror or str(error) if isinstance(error, OSError) else error.message
    return f"{transfer.source} -> {transfer.destination}: {reason}"
