"""A journal of the puts of this machine, so that a later one aborts the uploads of those that were killed.

Each put that sends files in parts has a file in the user's state folder, holds a lock on it, and deletes it at its end:
a file that can be locked belongs to a killed run. S3 bills the parts of its uploads, and does not tell who began them.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. endpoint: its S3; bucket, keys: the objects that it sends in parts."""

    endpoint: str
    bucket: str
    keys: tuple[str, ...]


@contextmanager
def noted(run: Run) -> Iterator[None]:
    """Holds the run's file, locked, while the block runs. Raises ClusterError if the file cannot be written."""
    path = _folder() / f"{uuid4().hex}.json"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.write(stack.enter_context(locked(path)), msgspec.json.encode(run))
        except OSError as error:
            raise ClusterError(
                f"{path.parent}: the journal of transfers cannot be written: {error.strerror}",
                hint="set XDG_STATE_HOME to a folder that can be written to",
            ) from error
        yield  # after an error the file stays: the next run aborts what this one left
        path.unlink(missing_ok=True)


def abort_unfinished(connection: Connection, report: Report) -> None:
    """Aborts the multipart uploads of killed runs in this S3. Warns if that fails; then the next put tries again."""
    for path in sorted(_folder().glob("*.json")):
        with suppress(OSError), locked(path, wait=False, make=False):  # it is running, or has just ended
            try:
                run = decode(path.read_bytes(), Run)
            except ValueError:  # killed before it was written
                path.unlink()
                continue
            if run.endpoint == connection.endpoint and _abort(connection, run, report):
                path.unlink()


def _folder() -> Path:
    return state_folder() / "transfers"


def _abort(connection: Connection, run: Run, report: Report) -> bool:
    """Returns whether the run is done with: its uploads are aborted, or a later try would fail, too."""
    try:
        for key, upload_id in _list_uploads(connection, run):
            with suppress(NotFoundError):
                connection.call("abort_multipart_upload", Bucket=run.bucket, Key=key, UploadId=upload_id)
    except NotFoundError:  # the bucket was deleted, and its uploads with it
        return True
    except ClusterError as error:
        what = f"cannot abort an interrupted upload, whose parts S3 bills: {error.message}"
        report(Event(kind="warn", what=what, where=f"s3://{run.bucket}/"))
        return isinstance(error, S3AccessDeniedError)
    return True


def _list_uploads(connection: Connection, run: Run) -> Iterator[tuple[str, str]]:
    """The (key, id) of each unfinished upload of the run's objects."""
    request = {"Bucket": run.bucket, "Prefix": os.path.commonprefix(run.keys)}  # noqa: RUF071 - a prefix of keys
    while True:
        page = connection.call("list_multipart_uploads", **request)
        yield from ((item["Key"], item["UploadId"]) for item in page.get("Uploads", ()) if item["Key"] in run.keys)
        if not page.get("IsTruncated"):
            return
        request |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
