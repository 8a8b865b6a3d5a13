"""What interrupted runs have begun in S3 and not ended: gone on with, or ended, as S3 bills for it."""

from collections.abc import Iterable

from provision.errors import ClusterError
from provision.progress import Event, Report
from train.s3.journal import Begun, Entry, Journal
from train.s3.plan import Upload
from train.s3.upload import end_abandoned
from train.s3.url import S3Url
from train.s3.wire import Wire

ABANDONED_S = 24 * 3600.0
"""So old, an upload to another place is not one that its user is about to go on with."""


def find_earlier(
    wire: Wire, journal: Journal, target: S3Url, uploads: Iterable[Upload], report: Report
) -> dict[S3Url, Entry]:
    """What interrupted runs have begun of these uploads, by destination, to go on with.

    Everything else that was begun at `target`, an object or a folder, is ended here, and so is what was begun anywhere
    in this S3 more than a day ago.
    """
    wanted = {upload.destination: upload for upload in uploads}
    earlier: dict[S3Url, Entry] = {}
    for entry in journal.take_abandoned(endpoint=wire.endpoint, report=report):
        url = S3Url(bucket=entry.begun.bucket, key=entry.begun.key)
        upload = wanted.get(url)
        if upload is not None and url not in earlier and entry.begun.is_of(upload.source):
            entry.touch()
            earlier[url] = entry
            continue
        if not _is_at(entry.begun, target) and entry.age_s < ABANDONED_S:
            entry.release()
            continue
        try:
            end_abandoned(wire, entry)
        except ClusterError as error:
            entry.release()
            report(Event(kind="warn", what=f"an interrupted upload is still there: {error.message}", where=str(url)))
    return earlier


def _is_at(begun: Begun, target: S3Url) -> bool:
    is_in = begun.key.startswith(target.as_folder().key)
    return begun.bucket == target.bucket and (begun.key == target.key or is_in)
