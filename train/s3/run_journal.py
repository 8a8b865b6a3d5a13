"""A journal of the puts and gets of this machine, so that a later run removes what a killed one left.

Each run has a file in the user's state folder, holds a lock on it, and deletes it at its end: a file that can be locked
belongs to a killed run. The next run removes what such a run left: parts of uploads, for which S3 bills, and temporary
files. S3 does not tell which run started an upload: it counts as a killed run's if that run sent this object in parts
and began before the upload.
"""

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import msgspec

from foundation.decode import decode
from foundation.errors import ClusterError, NotFoundError
from foundation.file_lock import locked
from foundation.progress import Event, Report
from foundation.user_folders import state_folder
from provision.aws.multipart_uploads import list_uploads
from train.s3.connection import Connection

PARTIAL_PREFIX = ".cluster-get-"
CLOCKS_APART = timedelta(minutes=15)
"""S3 rejects requests from a machine whose clock differs more than this from its own."""
NEW_S = 60.0
"""Another process may still be writing a file that is younger than this."""
RETRY_AFTER = timedelta(days=1)
GIVE_UP_AFTER = timedelta(days=7)
_GAVE_UP = "this was the last try: aws s3api list-multipart-uploads --bucket {bucket} shows uploads, which S3 bills"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. endpoint: its S3; bucket, keys: objects that it sends in parts; folders: real paths that it writes to.

    token: follows PARTIAL_PREFIX in the names of its temporary files.
    """

    token: str = msgspec.field(default_factory=lambda: uuid4().hex)
    began: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    endpoint: str = ""
    bucket: str = ""
    keys: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KilledRun:
    """A run that was killed; this process holds the lock on its file."""

    run: Run
    path: Path

    def forget(self) -> None:
        """Deletes the run's file: nothing of the run is left."""
        self.path.unlink(missing_ok=True)

    def is_due(self, now: datetime) -> bool:
        """Whether the clean-up was not tried yet, or long ago: the file's time is that of the next try."""
        return self.path.stat().st_mtime <= now.timestamp()

    def postpone(self, now: datetime) -> bool:
        """Sets the time of the next try after a failed one. Returns False, and forgets the run, if it is too old."""
        if now - self.run.began > GIVE_UP_AFTER:
            self.forget()
            return False
        later = (now + RETRY_AFTER).timestamp()
        os.utime(self.path, (later, later))
        return True


@contextmanager
def noted(run: Run) -> Iterator[None]:
    """Holds the run's file, locked, while the block runs. Raises ClusterError if the file cannot be written."""
    folder = _folder()
    path = folder / f"{run.token}.json"
    new = folder / f".{run.token}.new"
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = stack.enter_context(locked(new))
            os.write(descriptor, msgspec.json.encode(run))
            new.rename(path)  # so that no other run finds it unlocked or half written
        except OSError as error:
            raise ClusterError(
                f"{folder}: the journal of transfers cannot be written: {error.strerror}",
                hint="set XDG_STATE_HOME to a folder that can be written to",
            ) from error
        yield  # after an error the file stays: the next run removes what this one left
        path.unlink(missing_ok=True)


@contextmanager
def killed_runs(report: Report | None = None) -> Iterator[Sequence[KilledRun]]:
    """The runs that were killed. Warns about files that cannot be read, and leaves them."""
    found: list[KilledRun] = []
    with ExitStack() as stack:
        for path in _folder().glob(".*.new"):  # of runs that were killed before they started anything
            if time.time() - path.stat().st_mtime > NEW_S:
                path.unlink(missing_ok=True)
        for path in sorted(_folder().glob("*.json")):
            try:
                descriptor = stack.enter_context(locked(path, wait=False, make=False))
                if os.fstat(descriptor).st_nlink:
                    found.append(KilledRun(run=decode(path.read_bytes(), Run), path=path))
            except (FileNotFoundError, BlockingIOError):
                continue  # the run has just ended, or is still running
            except (OSError, ValueError) as error:
                if report is not None:
                    report(Event(kind="warn", what=f"cannot read what a killed run left: {error}", where=str(path)))
        yield found


def remove_partials(run: Run, kept: Collection[str]) -> None:
    """Deletes the temporary files of a killed get, except those named in `kept`. Raises OSError."""
    for folder in run.folders:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # the folder no longer exists
        try:
            for name in os.listdir(descriptor):  # noqa: PTH208 - of the folder that is open
                if name.startswith(f"{PARTIAL_PREFIX}{run.token}-") and name not in kept:
                    _remove_file(name, descriptor)
        finally:
            os.close(descriptor)


def _remove_file(name: str, parent: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)


def _folder() -> Path:
    return state_folder() / "transfers"


def abort_unfinished(connection: Connection, report: Report) -> None:
    """Aborts the multipart uploads of killed runs in this S3.

    Warns if that fails; then the puts of the next day try again, until the run is GIVE_UP_AFTER old.
    """
    now = datetime.now(UTC)
    with killed_runs(report) as found:
        for killed in found:
            if not killed.run.keys or killed.run.endpoint != connection.endpoint or not killed.is_due(now):
                continue
            try:
                _abort(connection, killed.run)
            except NotFoundError:  # the bucket was deleted, and its uploads with it
                killed.forget()
            except ClusterError as error:
                bucket = killed.run.bucket
                again = "the next try is tomorrow" if killed.postpone(now) else _GAVE_UP.format(bucket=bucket)
                what = f"cannot abort an interrupted upload: {error.message}; {again}"
                report(Event(kind="warn", what=what, where=f"s3://{bucket}/"))
            else:
                killed.forget()


def _abort(connection: Connection, run: Run) -> None:
    prefix = os.path.commonprefix(run.keys)  # noqa: RUF071 - a prefix of keys, not of paths
    keys = set(run.keys)
    list_page = partial(connection.call, "list_multipart_uploads")
    for upload in list_uploads(list_page, bucket=run.bucket, prefix=prefix):
        if upload["Key"] in keys and upload["Initiated"] >= run.began - CLOCKS_APART:
            connection.abort_upload(run.bucket, upload["Key"], upload["UploadId"])


def remove_unfinished(planned: Iterable[Path]) -> None:
    """Deletes the temporary files of killed runs, except one that is now a file to write. Raises OSError."""
    kept = {path.name for path in planned}
    with killed_runs() as found:
        for killed in found:
            if killed.run.folders:
                remove_partials(killed.run, kept)
                killed.forget()
