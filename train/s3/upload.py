"""One file to S3, verified by its CRC-32: in one request, or in parts that a later run can go on with."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.errors import AwsError, ClusterError, NotFoundError
from train.node import integrity
from train.s3.client import DamagedBodyError, S3AccessDeniedError
from train.s3.journal import Begun, Entry, Journal
from train.s3.parts import part_size
from train.s3.plan import Upload
from train.s3.section import Section, check_end, check_unchanged, encode_crc32
from train.s3.wire import Wire

Check = Callable[[], None]
_TRIES = 3
_REFUSALS = range(400, 500)
_AGAIN = "run the command again"


def put_whole(wire: Wire, upload: Upload, check: Check) -> int:
    """Put a file in one request; returns its size in bytes. Raises ClusterError's kinds, OSError."""
    target = {"Bucket": upload.destination.bucket, "Key": upload.destination.key}
    with upload.source.open("rb") as file:
        before = os.fstat(file.fileno())
        section = Section(file.fileno(), 0, before.st_size, check)
        crc = section.crc32()
        # What changes from now on is not what the checksum says, and is refused.
        check_unchanged(before, os.fstat(file.fileno()))
        check_end(file.fileno(), before)
        if _send(wire, "put_object", section, crc, **target) is None:
            # What S3 did not refuse it has stored: an object of wrong bytes is worse than none.
            wire.call("delete_object", **target)
            raise AwsError("S3 has stored other bytes than were sent: the object was deleted", hint=_AGAIN)
        return before.st_size


def _send(wire: Wire, method: str, section: Section, crc: int, **target: Any) -> Mapping[str, Any] | None:
    """S3's answer to a body, which is sent again where it arrives damaged; None where S3 has stored it so.

    Raises DamagedBodyError where S3 has refused it to the end, ClusterError's other kinds.
    """
    for tries_left in reversed(range(_TRIES)):
        section.seek(0)
        try:
            done = wire.call(method, **target, Body=section, ChecksumCRC32=encode_crc32(crc))
        except DamagedBodyError:
            if not tries_left:
                raise
            continue
        if arrived(done["ResponseMetadata"]["HTTPHeaders"], section, crc):
            return done
    return None


def arrived(headers: Mapping[str, str], section: Section, crc: int) -> bool:
    """Whether what S3 says about a body that it has taken is what was sent.

    S3 repeats the checksum that it has compared with. What does not know checksums gives an MD5 as ETag at least.
    """
    told = headers.get("x-amz-checksum-crc32")
    if told is not None:
        return told == encode_crc32(crc)
    check = integrity.find_check(headers, section.length)
    if check is None:
        return True  # encrypted with the user's own key, where the ETag says nothing
    for block in section.blocks():
        check.feed(block)
    return bool(check.matches())


class PartsUpload:
    """A file that goes to S3 in parts; see parts.InParts."""

    def __init__(self, wire: Wire, upload: Upload, journal: Journal, entry: Entry | None, check: Check) -> None:
        self._wire = wire
        self._upload = upload
        self._journal = journal
        self._entry = entry  # of an earlier run that was interrupted
        self._check = check
        self._target = {"Bucket": upload.destination.bucket, "Key": upload.destination.key}
        self._there: dict[int, Mapping[str, Any]] = {}
        self._done: dict[int, tuple[dict[str, Any], int, int]] = {}

    def begin(self) -> Sequence[int]:
        """Begin an upload, or find what an earlier run has sent."""
        self._descriptor = os.open(self._upload.source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._before = os.fstat(self._descriptor)
            self._step = part_size(self._before.st_size)
            if not self._find_earlier():
                self._create()
        except BaseException:
            os.close(self._descriptor)
            if self._entry is not None:
                self._entry.release()
            raise
        return range(1, -(-self._before.st_size // self._step) + 1)

    def _find_earlier(self) -> bool:
        if self._entry is None or self._entry.begun.upload_id is None:
            return False
        target = {**self._target, "UploadId": self._entry.begun.upload_id}
        after = 0
        try:
            while True:
                page = self._wire.call("list_parts", **target, PartNumberMarker=after)
                self._there |= {part["PartNumber"]: part for part in page.get("Parts", ())}
                if not page.get("IsTruncated"):
                    break
                after = page["NextPartNumberMarker"]
        except NotFoundError:  # it was completed, or somebody has aborted it
            self._entry.remove()
            self._entry = None
            return False
        self._target = target
        return True

    def _create(self) -> None:
        begun = Begun(
            endpoint=self._wire.endpoint,
            bucket=self._upload.destination.bucket,
            key=self._upload.destination.key,
            source=str(Path(self._upload.source).absolute()),
            size_bytes=self._before.st_size,
            mtime_ns=self._before.st_mtime_ns,
            others=find_uploads(self._wire, **self._target),
        )
        self._entry = self._journal.begin(begun)
        try:
            made = self._wire.call(
                "create_multipart_upload", **self._target, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
            )
        except ClusterError as error:
            if _is_refusal(error):
                self._entry.remove()
                self._entry = None
            raise  # else S3 may have begun one all the same: a later run looks for it
        if made["ResponseMetadata"]["RetryAttempts"]:
            # S3 may have begun one by each attempt. The id is noted after that: without it, a later run finds them all.
            _abort_unnamed(self._wire, begun, but=made["UploadId"])
        self._entry.note_id(made["UploadId"])
        self._target = {**self._target, "UploadId": made["UploadId"]}

    def move(self, number: int) -> int:
        """Send a part, unless S3 has it."""
        begin = (number - 1) * self._step
        section = Section(self._descriptor, begin, min(self._step, self._before.st_size - begin), self._check)
        length = section.length
        crc = section.crc32()
        etag = self._find_part(number, section, crc) or self._send(number, section, crc)
        self._done[number] = ({"PartNumber": number, "ETag": etag, "ChecksumCRC32": encode_crc32(crc)}, crc, length)
        return length

    def _find_part(self, number: int, section: Section, crc: int) -> str | None:
        part = self._there.get(number)
        if part is None or part["Size"] != section.length:
            return None
        told = part.get("ChecksumCRC32")
        same = told == encode_crc32(crc) if told else part["ETag"].strip('"') == section.md5()
        return str(part["ETag"]) if same else None

    def _send(self, number: int, section: Section, crc: int) -> str:
        done = _send(self._wire, "upload_part", section, crc, **self._target, PartNumber=number)
        if done is None:
            raise AwsError(f"S3 has other bytes of part {number} than were sent, again and again", hint=_AGAIN)
        return str(done["ETag"])

    def finish(self) -> None:
        """Make the object appear, if S3 agrees on its checksum."""
        check_unchanged(self._before, os.fstat(self._descriptor))
        check_end(self._descriptor, self._before)
        whole = 0
        for _, (_, crc, length) in sorted(self._done.items()):
            whole = integrity.combine_crc32(whole, crc, length)
        parts = [part for _, (part, _, _) in sorted(self._done.items())]
        try:
            self._wire.call(
                "complete_multipart_upload",
                **self._target,
                MultipartUpload={"Parts": parts},
                ChecksumCRC32=encode_crc32(whole),
                ChecksumType="FULL_OBJECT",
            )
        except NotFoundError:
            # Its answer was lost, and it was repeated, where the upload is none any more.
            if self._wire.find_headers(self._upload.destination).get("x-amz-checksum-crc32") != encode_crc32(whole):
                raise
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        if self._entry is not None:
            self._entry.remove()

    def give_up(self, *, resumable: bool) -> None:
        """Leave the parts to a later run, or delete them."""
        if resumable and self._entry is not None:
            os.close(self._descriptor)
            self._entry.release()
            return
        try:
            self._wire.call("abort_multipart_upload", **self._target)
        except NotFoundError:
            pass  # it is gone already
        self._close()


def find_uploads(wire: Wire, **target: str) -> list[str] | None:
    """The ids of all uploads in parts to a key; None where S3 does not tell. Raises AwsError."""
    ids = []
    more: dict[str, str] = {}
    try:
        while True:
            page = wire.call("list_multipart_uploads", Bucket=target["Bucket"], Prefix=target["Key"], **more)
            ids += [item["UploadId"] for item in page.get("Uploads", ()) if item["Key"] == target["Key"]]
            if not page.get("IsTruncated"):
                return ids
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    except S3AccessDeniedError:
        return None


def end_abandoned(wire: Wire, entry: Entry) -> None:
    """Delete the parts of an upload that was begun here and that nobody goes on with. Raises AwsError."""
    if entry.begun.upload_id is not None:
        _abort(wire, entry.begun, entry.begun.upload_id)
    else:
        _abort_unnamed(wire, entry.begun)
    entry.remove()


def _abort_unnamed(wire: Wire, begun: Begun, *, but: str | None = None) -> None:
    """Abort what S3 began and did not come to tell the id of. Raises AwsError.

    Nothing was ever sent to it: an upload that has parts is another program's, which began it meanwhile.
    """
    if begun.others is None:
        return
    target = {"Bucket": begun.bucket, "Key": begun.key}
    try:
        found = find_uploads(wire, **target) or ()
    except NotFoundError:
        return  # nor is there the bucket any more
    for upload_id in found:
        if upload_id == but or upload_id in begun.others:
            continue
        try:
            parts = wire.call("list_parts", **target, UploadId=upload_id, MaxParts=1).get("Parts")
        except NotFoundError:
            continue  # somebody has just ended it
        except S3AccessDeniedError:
            parts = None
        if not parts:
            _abort(wire, begun, upload_id)


def _abort(wire: Wire, begun: Begun, upload_id: str) -> None:
    try:
        wire.call("abort_multipart_upload", Bucket=begun.bucket, Key=begun.key, UploadId=upload_id)
    except NotFoundError:
        pass  # it was completed, or somebody has aborted it


def _is_refusal(error: ClusterError) -> bool:
    """Whether S3 has surely not done what it was asked: that was its answer, and to the first attempt."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - slow to load: see wire.py

    if not isinstance(error.__cause__, ClientError):
        return False
    answer = error.__cause__.response["ResponseMetadata"]
    return answer["HTTPStatusCode"] in _REFUSALS and not answer.get("RetryAttempts")
