"""Carries out uploads and downloads: many files at once, in a fixed amount of memory, whole files or none.

An object appears in S3 only when all of it is there (S3 keeps the parts of an unfinished upload apart, and
they are deleted when the upload fails or is interrupted). A local file is written under another name and
renamed when all of it is there.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from botocore.exceptions import BotoCoreError
from s3fs.core import S3_RETRYABLE_ERRORS

from provision.errors import ClusterError
from train.s3.client import MAX_CONNECTIONS, S3Client, explain
from train.s3.plan import Download, Upload

PART_BYTES = 8 * 2**20
MAX_PARTS = 10_000  # S3's limit for one object
MEMORY_BYTES = 32 * 2**20
_READ_TRIES = 4


class Progress(Protocol):
    """Told what moved; called from the thread that called `apply`."""

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


class _Budget:
    """Bytes that may be in memory at once; who asks first gets first."""

    def __init__(self, size_bytes: int) -> None:
        self._free = size_bytes
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Condition()

    @asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        async with self._turn, self._given_back:
            await self._given_back.wait_for(lambda: self._free >= size_bytes)
            self._free -= size_bytes
        try:
            yield
        finally:
            self._free += size_bytes
            async with self._given_back:
                self._given_back.notify_all()


async def apply(client: S3Client, transfers: Sequence[Upload | Download], progress: Progress) -> None:
    """Carry out all transfers; a failed one does not keep the others from being finished.

    Raises ClusterError that names each file that failed, and why, when the others are done.
    """
    budget = _Budget(MEMORY_BYTES)
    failed: list[str] = []
    waiting = iter(transfers)

    async def work() -> None:
        for transfer in waiting:
            try:
                if isinstance(transfer, Upload):
                    await _upload(client, transfer, budget, progress)
                else:
                    await _download(client, transfer, budget, progress)
            except (ClusterError, OSError) as error:
                failed.append(_tell(transfer, error))
            else:
                progress.finished(transfer)

    await _run_all(work() for _ in range(min(MAX_CONNECTIONS, len(transfers))))
    if failed:
        listed = "\n  ".join(sorted(failed))
        raise ClusterError(
            f"{len(failed)} of {len(transfers)} files failed, the others are done:\n  {listed}",
            hint="run the command again",
        )


def part_size(size_bytes: int) -> int:
    """The size of a part for a file: PART_BYTES, or the whole MiB more that MAX_PARTS need."""
    mib = 2**20
    least = -(-size_bytes // MAX_PARTS)
    return max(PART_BYTES, -(-least // mib) * mib)


async def _upload(client: S3Client, upload: Upload, budget: _Budget, progress: Progress) -> None:
    target = {"Bucket": upload.destination.bucket, "Key": upload.destination.key}
    with upload.source.open("rb") as file:
        before = os.fstat(file.fileno())
        if before.st_size <= PART_BYTES:
            async with budget.take(before.st_size):
                body = await _read_part(file.fileno(), 0, before.st_size)
                _check_unchanged(before, os.fstat(file.fileno()))
                await client.call("put_object", **target, Body=body)
            progress.moved(before.st_size)
            return
        upload_id = (await client.call("create_multipart_upload", **target))["UploadId"]
        try:
            parts = await _upload_parts(client, target | {"UploadId": upload_id}, file.fileno(), budget, progress)
            _check_unchanged(before, os.fstat(file.fileno()))
            await client.call(
                "complete_multipart_upload", **target, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        except BaseException:  # an interrupt, too, must not leave parts behind that cost money
            await client.call("abort_multipart_upload", **target, UploadId=upload_id)
            raise


async def _upload_parts(
    client: S3Client, target: dict[str, str], descriptor: int, budget: _Budget, progress: Progress
) -> list[dict[str, object]]:
    size_bytes = os.fstat(descriptor).st_size
    step = part_size(size_bytes)
    parts: dict[int, dict[str, object]] = {}

    async def send(number: int, begin: int) -> None:
        length = min(step, size_bytes - begin)
        async with budget.take(length):
            body = await _read_part(descriptor, begin, length)
            response = await client.call("upload_part", **target, PartNumber=number, Body=body)
        parts[number] = {"PartNumber": number, "ETag": response["ETag"]}
        progress.moved(length)

    await _run_all(send(number, begin) for number, begin in enumerate(range(0, size_bytes, step), start=1))
    return [parts[number] for number in sorted(parts)]


async def _download(client: S3Client, download: Download, budget: _Budget, progress: Progress) -> None:
    descriptor, temporary = _open_temporary(download.destination)
    try:
        try:
            await _download_parts(client, download, descriptor, budget, progress)
            os.fchmod(descriptor, 0o666 & ~_umask())
        finally:
            os.close(descriptor)
        temporary.replace(download.destination)
    except BaseException:  # an interrupt, too, must not leave half a file behind
        temporary.unlink()
        raise


def _open_temporary(destination: Path) -> tuple[int, Path]:
    """A new file beside the destination, whose folder is made."""
    if destination.is_dir():
        raise ClusterError("there is a folder of this name")
    destination.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".cluster-get-", dir=destination.parent)
    return descriptor, Path(name)


async def _download_parts(
    client: S3Client, download: Download, descriptor: int, budget: _Budget, progress: Progress
) -> None:
    async def fetch(begin: int) -> None:
        length = min(PART_BYTES, download.size_bytes - begin)
        async with budget.take(length):
            body = await _fetch_part(client, download, begin, length)
            await asyncio.to_thread(_write_part, descriptor, body, begin)
        progress.moved(length)

    await _run_all(fetch(begin) for begin in range(0, download.size_bytes, PART_BYTES))


async def _fetch_part(client: S3Client, download: Download, begin: int, length: int) -> bytes:
    """The bytes, asked for again where the connection breaks while they come."""
    for attempt in range(1, _READ_TRIES + 1):
        response = await client.call(
            "get_object",
            Bucket=download.source.bucket,
            Key=download.source.key,
            Range=f"bytes={begin}-{begin + length - 1}",
            IfMatch=download.etag,
        )
        try:
            async with response["Body"] as stream:
                body: bytes = await stream.read()
        except (*S3_RETRYABLE_ERRORS, BotoCoreError, OSError) as error:
            if attempt == _READ_TRIES:
                url = download.source
                raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
            await asyncio.sleep(0.1 * 2**attempt)
            continue
        if len(body) == length:
            return body
    raise ClusterError(f"S3 sent {len(body)} bytes where {length} were asked for")


async def _run_all(work: Iterable[Awaitable[None]]) -> None:
    """All at once; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_part(descriptor: int, begin: int, length: int) -> bytes:
    body = await asyncio.to_thread(os.pread, descriptor, length, begin)
    if len(body) < length:
        raise ClusterError("it was cut short while it was read")
    return body


def _write_part(descriptor: int, body: bytes, begin: int) -> None:
    view = memoryview(body)
    while view:
        written = os.pwrite(descriptor, view, begin)
        view, begin = view[written:], begin + written


def _check_unchanged(before: os.stat_result, after: os.stat_result) -> None:
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ClusterError("it was changed while it was read")


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _tell(transfer: Upload | Download, error: ClusterError | OSError) -> str:
    reason = error.strerror or str(error) if isinstance(error, OSError) else error.message
    return f"{transfer.source} -> {transfer.destination}: {reason}"
