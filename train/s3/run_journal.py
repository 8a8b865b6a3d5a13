"""A journal of the puts of this machine, so that a later one aborts the uploads of those that were killed.

Each put that sends files in parts has a file in the user's state folder, holds a lock on it, and deletes it at its end:
a file that can be locked belongs to a killed run. S3 bills the parts of its uploads. S3 does not tell which run started
an upload: it counts as a killed run's if that run sent this object in parts and began before the upload.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from train.s3.connection import Connection
from train.s3.errors import S3AccessDeniedError
from train.s3.multipart_uploads import list_uploads

CLOCKS_APART = timedelta(minutes=15)
"""S3 rejects requests from a machine whose clock differs more than this from its own."""
NEW_S = 60.0
"""Another process may still be writing a file that is younger than this."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. endpoint: its S3; bucket, keys: the objects that it sends in parts."""

    began: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    endpoint: str = ""
    bucket: str = ""
    keys: tuple[str, ...] = ()


@contextmanager
def noted(run: Run) -> Iterator[None]:
    """Holds the run's file, locked, while the block runs. Raises ClusterError if the file cannot be written."""
    folder = _folder()
    name = uuid4().hex
    path, new = folder / f"{name}.json", folder / f".{name}.new"
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
        yield  # after an error the file stays: the next run aborts what this one left
        path.unlink(missing_ok=True)


@contextmanager
def killed_runs(report: Report) -> Iterator[dict[Path, Run]]:
    """The runs that were killed, by their files, which are locked. Warns about files that cannot be read."""
    found: dict[Path, Run] = {}
    with ExitStack() as stack:
        for path in _folder().glob(".*.new"):  # of runs that were killed before they started anything
            if time.time() - path.stat().st_mtime > NEW_S:
                path.unlink(missing_ok=True)
        for path in sorted(_folder().glob("*.json")):
            try:
                descriptor = stack.enter_context(locked(path, wait=False, make=False))
                if os.fstat(descriptor).st_nlink:
                    found[path] = decode(path.read_bytes(), Run)
            except (FileNotFoundError, BlockingIOError):
                continue  # the run has just ended, or is still running
            except (OSError, ValueError) as error:
                report(Event(kind="warn", what=f"cannot read what a killed run left: {error}", where=str(path)))
        yield found


def _folder() -> Path:
    return state_folder() / "transfers"


def abort_unfinished(connection: Connection, report: Report) -> None:
    """Aborts the multipart uploads of killed runs in this S3. Warns if that fails; then the next put tries again."""
    with killed_runs(report) as found:
        for path, run in found.items():
            if run.endpoint != connection.endpoint:
                continue
            try:
                _abort(connection, run)
            except NotFoundError:  # the bucket was deleted, and its uploads with it
                path.unlink()
            except ClusterError as error:
                what = f"cannot abort an interrupted upload, whose parts S3 bills: {error.message}"
                report(Event(kind="warn", what=what, where=f"s3://{run.bucket}/"))
                if isinstance(error, S3AccessDeniedError):  # a later try would fail, too
                    path.unlink()
            else:
                path.unlink()


def _abort(connection: Connection, run: Run) -> None:
    prefix = os.path.commonprefix(run.keys)  # noqa: RUF071 - a prefix of keys, not of paths
    keys = set(run.keys)
    list_page = partial(connection.call, "list_multipart_uploads")
    for upload in list_uploads(list_page, bucket=run.bucket, prefix=prefix):
        if upload["Key"] in keys and upload["Initiated"] >= run.began - CLOCKS_APART:
            connection.abort_upload(run.bucket, upload["Key"], upload["UploadId"])
