"""One object from S3, verified by what S3 says about it: in one request, or in parts that a later run goes on with."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from provision.errors import AwsError, ClusterError, NotFoundError
from train.node import integrity
from train.s3.client import explain
from train.s3.content import feed_open, find_certain_check
from train.s3.crc import crc32
from train.s3.exchange import UnsureError
from train.s3.partial_file import PartialFile, PartialFiles, checksum
from train.s3.parts import PART_BYTES, DamagedError
from train.s3.plan import Download
from train.s3.wire import Wire

Check = Callable[[], None]
# Told of a download of which S3 keeps nothing that its bytes can be compared with.
NoteUnverified = Callable[[Download], None]
_TRIES = 4
_BLOCK_BYTES = 2**20
_ASK = -1
_MD5 = re.compile(r'"([0-9a-f]{32})"')
_DAMAGED = "what came from S3 is not what S3 says that it keeps: nothing was written"


def get_small(wire: Wire, files: PartialFiles, download: Download) -> int:
    """Get an object of which the listing says enough; returns its size in bytes.

    Raises UnsureError where it does not, or where what came is not that; ClusterError's kinds, OSError.
    """
    said = _MD5.fullmatch(download.etag)
    if said is None:
        raise UnsureError
    content = wire.get_small(download.source, etag=download.etag)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != said[1]:
        raise UnsureError
    with _open_partial(files, download) as partial_file:
        partial_file.write(content, 0)
        partial_file.publish()
    return len(content)


def get_whole(wire: Wire, files: PartialFiles, download: Download, check: Check, note: NoteUnverified) -> int:
    """Get an object in one request; returns its size in bytes. Raises ClusterError's kinds, OSError."""
    with _open_partial(files, download) as partial_file:
        for attempt in range(1, _TRIES + 1):
            try:
                length, verified = _fetch_whole(wire, download, partial_file, check)
            except BrokenReadError as error:
                if attempt == _TRIES:
                    raise explain_broken(error, download) from error
                _pause(attempt)
                continue
            if length == download.size_bytes and verified is not False:
                partial_file.publish()
                if verified is None:
                    note(download)
                return length
        raise AwsError(_DAMAGED, hint="run the command again")


def _fetch_whole(wire: Wire, download: Download, partial_file: PartialFile, check: Check) -> tuple[int, bool | None]:
    """(how many bytes came, whether they are what S3 says: None where it says nothing that can be compared)."""
    response = _ask(wire, download, ChecksumMode="ENABLED")
    verify = _find_check(wire, download, response["ResponseMetadata"]["HTTPHeaders"])
    length = 0
    for block in _read(response["Body"], check):
        if verify is not None:
            verify.feed(block)
        partial_file.write(block, length)
        length += len(block)
    return length, None if verify is None else bool(verify.matches())


def _pause(attempt: int) -> None:
    time.sleep(0.1 * 2**attempt)


@contextmanager
def _open_partial(files: PartialFiles, download: Download) -> Iterator[PartialFile]:
    """An empty temporary file that is gone when the block ends in an error."""
    partial_file = files.open(download)
    try:
        partial_file.forget()
        yield partial_file
    except BaseException:
        partial_file.remove()
        raise


class PartsDownload:
    """An object that comes in parts; see parts.InParts. To ask what S3 says about it is a part, too."""

    def __init__(self, wire: Wire, files: PartialFiles, download: Download, check: Check, note: NoteUnverified) -> None:
        self._wire = wire
        self._files = files
        self._download = download
        self._check = check
        self._note = note
        self._told: Mapping[str, str] = {}
        self._crcs: dict[int, int] = {}

    def begin(self) -> Sequence[int]:
        """Open the file, which may have what an earlier run has fetched."""
        self._file = self._files.open(self._download)
        return range(_ASK, -(-self._download.size_bytes // PART_BYTES))

    def move(self, number: int) -> int:
        """Fetch a part, unless it is there."""
        if number == _ASK:
            self._told = self._wire.find_headers(self._download.source, etag=self._download.etag)
            return 0
        begin = number * PART_BYTES
        length = min(PART_BYTES, self._download.size_bytes - begin)
        crc = self._file.read_record(number)
        if crc is None or checksum(self._file.descriptor, begin, length) != crc:
            crc = self._fetch(begin, length)
            self._file.record(number, crc)
        self._crcs[begin] = crc
        return length

    def _fetch(self, begin: int, length: int) -> int:
        for attempt in range(1, _TRIES + 1):
            at, crc = begin, 0
            try:
                for block in self._read_range(begin, length, surely=attempt > 1):
                    crc = crc32(block, crc)
                    self._file.write(block, at)
                    at += len(block)
            except BrokenReadError as error:
                if attempt == _TRIES:
                    raise explain_broken(error, self._download) from error
                _pause(attempt)
                continue
            if at == begin + length:
                return crc
        raise AwsError(f"S3 sent {at - begin} bytes where {length} were asked for", hint="run the command again")

    def _read_range(self, begin: int, length: int, *, surely: bool) -> Iterator[memoryview]:
        """Its blocks; surely: by botocore, which says what is wrong. Raises BrokenReadError, ClusterError's kinds."""
        if not surely:
            try:
                for block in self._wire.get_range(self._download.source, begin, length, etag=self._download.etag):
                    self._check()
                    yield block
            except UnsureError as error:
                raise BrokenReadError from error
            return
        wanted = f"bytes={begin}-{begin + length - 1}"
        yield from _read(_ask(self._wire, self._download, Range=wanted)["Body"], self._check)

    def finish(self) -> None:
        """Give the file its name, if it is what S3 says."""
        verify = _find_check(self._wire, self._download, self._told)
        if verify is not None and not self._is_right(verify):
            self._file.forget()
            raise DamagedError(_DAMAGED)
        self._file.publish()
        if verify is None:  # every part had the length that was asked for
            self._note(self._download)

    def _is_right(self, verify: Any) -> bool:
        if verify.cut != integrity.ANY:
            self._file.close_records()
            return feed_open(verify, self._file.descriptor, self._check)
        for begin, crc in self._crcs.items():
            verify.add(begin, min(PART_BYTES, self._download.size_bytes - begin), crc.to_bytes(4, "big"))
        return bool(verify.matches())

    def give_up(self, *, resumable: bool) -> None:
        """Leave what is there to a later run, or delete it."""
        if resumable:
            self._file.leave()
        else:
            self._file.remove()


class BrokenReadError(Exception):
    """The connection broke while an answer's body was read."""


def explain_broken(error: BrokenReadError, download: Download) -> ClusterError:
    """What to tell about it."""
    cause = error.__cause__
    reason = cause if isinstance(cause, Exception) else error
    return explain(reason, "get_object", bucket=download.source.bucket, key=download.source.key)


def explain_missing(wire: Wire, download: Download, error: NotFoundError) -> ClusterError:
    """What to tell about an object that was listed and is not there: perhaps its name ends with a slash."""
    folder = download.source.as_folder()
    try:
        wire.find_headers(folder)
    except ClusterError:
        return error
    return ClusterError(f"the object is {folder}: its name ends with a slash, and that of a file cannot")


def _ask(wire: Wire, download: Download, **more: Any) -> dict[str, Any]:
    return wire.call(
        "get_object", Bucket=download.source.bucket, Key=download.source.key, IfMatch=download.etag, **more
    )


def _read(body: Any, check: Check) -> Iterator[memoryview]:
    """The blocks of an answer's body; each is good until the next one is asked for. Raises BrokenReadError."""
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - loaded by whoever got the body
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

    block = memoryview(bytearray(_BLOCK_BYTES))
    with body:
        while True:
            check()
            try:
                count = body.readinto(block)
            except (BotoCoreError, HTTPError, OSError) as error:
                raise BrokenReadError from error
            if not count:
                return
            yield block[:count]


def _find_check(wire: Wire, download: Download, told: Mapping[str, str]) -> Any:
    ask = partial(wire.find_headers, download.source, etag=download.etag)
    return find_certain_check(ask, download.size_bytes, told)
