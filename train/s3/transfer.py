"""Carries out uploads and downloads: many files, and many parts of large ones, in parallel.

Each file arrives whole or not at all. An object appears in S3 when it is complete and S3 has verified its SHA-256. A
local file is written under a temporary name, compared with a checksum that S3 keeps, and renamed. After an interrupt,
the next run copies the missing files; partial_file.py and run_journal.py remove what the interrupted run left.
"""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from foundation.errors import AwsError, ClusterError, CredentialsError, list_lines
from foundation.thread_pool import Check, map_in_threads
from node.staging.integrity import MIB
from node.staging.s3_store import Source
from train.s3.connection import Connection
from train.s3.content import RangeDigests, find_digests, verify_open
from train.s3.partial_file import PartialFile, find_file_mode
from train.s3.transfer_plan import Download, Upload

PART_BYTES = 8 * MIB
SMALL_BYTES = MIB // 2


class Tier(Struct, frozen=True, kw_only=True):
    """How many files of at most `most_bytes` are transferred at once, and how many parts of each.

    Small files wait for S3's answers, large ones for the network; no tier keeps more than 64 MiB of files in memory.
    """

    most_bytes: float
    files_at_once: int
    parts_at_once: int


TIERS = (
    Tier(most_bytes=SMALL_BYTES, files_at_once=128, parts_at_once=1),
    Tier(most_bytes=PART_BYTES, files_at_once=8, parts_at_once=1),
    Tier(most_bytes=8 * PART_BYTES, files_at_once=4, parts_at_once=2),
    Tier(most_bytes=float("inf"), files_at_once=1, parts_at_once=6),
)


def find_tier(size_bytes: int) -> Tier:
    """The tier of a file. Pure."""
    return next(tier for tier in TIERS if size_bytes <= tier.most_bytes)


class Progress:
    """Receives the progress of transfers, from one thread at a time; this base class ignores it."""

    def moved(self, size_bytes: int) -> None:
        """This many more bytes arrived."""

    def finished(self, _transfer: Upload | Download, /) -> None:
        """A whole file arrived."""


def is_in_parts(transfer: Upload | Download) -> bool:
    """Whether a file is sent in parts, which S3 keeps if the upload is killed. Pure."""
    return transfer.size_bytes > PART_BYTES


def apply(
    connection: Connection,
    transfers: Sequence[Upload | Download],
    progress: Progress,
    *,
    refused: Sequence[str] = (),
) -> Sequence[Download]:
    """Carries out all transfers, even after one has failed; CredentialsError, which others would also get, ends all.

    Returns the downloads for which S3 keeps no checksum to compare with: only their lengths were verified. When all are
    done, raises ClusterError that names each file that failed, and why; also those that were `refused` before.
    """
    job = _Job(connection, progress)
    for tier in TIERS:
        of_tier = [transfer for transfer in transfers if find_tier(transfer.size_bytes) is tier]
        map_in_threads(partial(job.transfer, tier), of_tier, threads=tier.files_at_once)
    if job.failed:
        failed = [*sorted(job.failed), *refused]
        raise explain_failures(failed, of=len(transfers) + len(refused), hint="run the command again")
    return job.unverified


def explain_failures(failed: Sequence[str], *, of: int, hint: str) -> ClusterError:
    """The error after a copy of which some files failed."""
    others = ", the others are done" if len(failed) < of else ""
    return ClusterError(f"{len(failed)} of {of} files failed{others}:{list_lines(failed)}", hint=hint)


class _Job:
    def __init__(self, connection: Connection, progress: Progress) -> None:
        self.failed: list[str] = []
        self.unverified: list[Download] = []
        self._connection = connection
        self._progress = progress
        self._mode = find_file_mode()
        self._lock = threading.Lock()

    def transfer(self, tier: Tier, transfer: Upload | Download, check: Check) -> None:
        try:
            if isinstance(transfer, Upload):
                self._put(transfer, tier, check)
            else:
                self._get(transfer, tier, check)
        except CredentialsError:
            raise
        except (ClusterError, OSError) as error:
            with self._lock:
                self.failed.append(_render_failure(transfer, error))
        else:
            with self._lock:
                self._progress.finished(transfer)

    def _moved(self, size_bytes: int) -> None:
        with self._lock:
            self._progress.moved(size_bytes)

    def _put(self, upload: Upload, tier: Tier, check: Check) -> None:
        def watch(size_bytes: int) -> None:
            check()
            self._moved(size_bytes)

        status = upload.source.stat()
        with Source(upload.source, (status.st_size, status.st_mtime_ns), watch) as source:
            self._connection.put(upload.destination, source, part_bytes=PART_BYTES, parts_at_once=tier.parts_at_once)

    def _get(self, download: Download, tier: Tier, check: Check) -> None:
        file = PartialFile(download.destination, self._mode)
        try:
            verified = self._fetch_verified(download, file, tier, check)
            check()  # after an interrupt no file is published
            file.publish()
        except BaseException:
            file.remove()
            raise
        if verified is None:
            with self._lock:
                self.unverified.append(download)

    def _fetch_verified(self, download: Download, file: PartialFile, tier: Tier, check: Check) -> bool | None:
        """Fetches the object and verifies it; returns None if S3 keeps no checksum to compare with."""
        ask = partial(self._find_headers, download)
        # The ETag of an object sent in parts says little; for a small file, a HEAD request is not worth it.
        headers = ask() if is_in_parts(download) else None
        compared = find_digests(headers or {}, download.size_bytes, PART_BYTES)
        digests = self._fetch(download, file, tier, check, compared)
        verified = compared and compared.match(digests)
        if not verified:  # compare other digests, or those of parts of another size
            verified = verify_open(
                file.descriptor,
                size_bytes=download.size_bytes,
                etag=download.etag,
                find_headers=ask,
                go_on=check,
                headers=headers,
            )
        if verified is False:
            raise AwsError(
                "the bytes from S3 do not match S3's own checksum: nothing was written", hint="run the command again"
            )
        return verified

    def _find_headers(self, download: Download, part: int | None = None) -> Any:
        return self._connection.find_headers(download.source, etag=None if part else download.etag, part=part)

    def _fetch(
        self, download: Download, file: PartialFile, tier: Tier, check: Check, compared: RangeDigests | None
    ) -> Sequence[bytes]:
        """Fetches the whole object; returns the digests of its ranges, if they are compared."""

        def fetch(begin: int, stop: Check) -> bytes:
            def both() -> None:
                check()
                stop()

            return self._fetch_range(download, file, begin, both, compared)

        begins = range(0, download.size_bytes, PART_BYTES)
        if len(begins) == 1:
            return (fetch(0, check),)
        return map_in_threads(fetch, begins, threads=tier.parts_at_once)

    def _fetch_range(
        self, download: Download, file: PartialFile, begin: int, check: Check, compared: RangeDigests | None
    ) -> bytes:
        length = min(PART_BYTES, download.size_bytes - begin)
        at, digest = begin, compared and compared.begin()
        for block in self._connection.get_range(download.source, begin, length, etag=download.etag):
            check()
            file.write(block, at)
            if digest:
                digest.update(block)
            at += len(block)
        if at != begin + length:
            raise AwsError(f"S3 sent {at - begin} bytes instead of {length}")
        self._moved(length)
        return digest.digest() if digest else b""


def _render_failure(transfer: Upload | Download, error: ClusterError | OSError) -> str:
    reason = error.strerror or str(error) if isinstance(error, OSError) else error.message
    return f"{transfer.source} -> {transfer.destination}: {reason}"
