"""dmlc's RecordIO, the file format that MXNet reads records from, without MXNet.

A file is a row of records. A record is one part, or several where its payload holds the magic number:

    0xced7230a | cflag << 29 | length | payload | 0..3 bytes of padding up to a multiple of four

All numbers are little-endian and 32 bits wide. A reader that starts in the middle of a file looks for the
magic number at a multiple of four, so a payload must not hold it there: the writer takes it out and splits
the record at that point, and the reader puts it back. cflag is 0 for a whole record, else 1, 2, 3 for its
first, middle and last parts.

Source: dmlc-core, include/dmlc/recordio.h and src/recordio.cc. A payload that MXNet's image iterators read
begins with an IRHeader (mxnet/recordio.py): flag, label, id and id2, and, where flag > 0, `flag` further
labels.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from provision.errors import ClusterError

MAGIC = struct.pack("<I", 0xCED7230A)
_LENGTH_BITS = 29
MAX_PAYLOAD_BYTES = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PART = struct.Struct("<II")
_IMAGE_HEADER = struct.Struct("<IfQQ")


def encode_record(payload: bytes) -> bytes:
    """One record as it stands in the file, padding included.

    Raises ValueError for a payload of more than MAX_PAYLOAD_BYTES, which the format cannot hold.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a RecordIO payload holds at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    cuts = list(_aligned_magics(payload))
    encoded = bytearray()
    begin = 0
    for cut in cuts:
        encoded += _part(_FIRST if begin == 0 else _MIDDLE, payload[begin:cut])
        begin = cut + len(MAGIC)
    encoded += _part(_LAST if cuts else _WHOLE, payload[begin:])
    encoded += bytes(-len(payload) % 4)
    return bytes(encoded)


def read_records(file: BinaryIO, *, name: str) -> Iterator[bytes]:
    """Every payload in the file, from where it stands to its end.

    `name` is what an error calls the file. Raises ClusterError, with the offset in bytes from where reading
    began, where the file is cut short or is not RecordIO.
    """
    offset = 0
    parts: list[bytes] = []
    while header := file.read(_PART.size):
        begin = offset
        if len(header) < _PART.size:
            raise _broken(name, begin, "the file ends inside a record's header")
        magic, field = _PART.unpack(header)
        if header[: len(MAGIC)] != MAGIC:
            raise _broken(name, begin, f"expected the magic number 0xced7230a, found {magic:#010x}")
        flag, length = field >> _LENGTH_BITS, field & MAX_PAYLOAD_BYTES
        padded = length + -length % 4
        body = file.read(padded)
        if len(body) < padded:
            raise _broken(name, begin, f"the file ends inside a record of {length} bytes")
        if flag > _LAST or (flag in (_WHOLE, _FIRST)) == bool(parts):
            raise _broken(name, begin, f"a record part of kind {flag} stands where it cannot")
        offset += _PART.size + padded
        parts.append(body[:length])
        if flag in (_WHOLE, _LAST):
            yield MAGIC.join(parts)
            parts = []
    if parts:
        raise _broken(name, offset, "the file ends between two parts of a record")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRecord:
    """What MXNet's image iterators find in a payload: labels, an id, and the encoded image (PNG or JPEG)."""

    labels: tuple[float, ...]
    record_id: int
    image: bytes


def encode_image(record: ImageRecord) -> bytes:
    """The payload for one image: an IRHeader and the encoded image.

    Raises ValueError where there is no label.
    """
    if not record.labels:
        raise ValueError("an image record needs a label")
    if len(record.labels) == 1:
        return _IMAGE_HEADER.pack(0, record.labels[0], record.record_id, 0) + record.image
    labels = struct.pack(f"<{len(record.labels)}f", *record.labels)
    return _IMAGE_HEADER.pack(len(record.labels), 0.0, record.record_id, 0) + labels + record.image


def decode_image(payload: bytes, *, name: str) -> ImageRecord:
    """The labels, id and encoded image in a payload; labels are 32-bit floats.

    `name` is what an error calls the record. Raises ClusterError where the payload is too short for its
    header.
    """
    if len(payload) < _IMAGE_HEADER.size:
        raise ClusterError(f"{name}: {len(payload)} bytes are too short for an image record")
    flag, label, record_id, _ = _IMAGE_HEADER.unpack_from(payload)
    begin = _IMAGE_HEADER.size
    if flag == 0:
        return ImageRecord(labels=(label,), record_id=record_id, image=payload[begin:])
    end = begin + 4 * flag
    if len(payload) < end:
        raise ClusterError(f"{name}: {len(payload)} bytes are too short for {flag} labels")
    labels = struct.unpack_from(f"<{flag}f", payload, begin)
    return ImageRecord(labels=labels, record_id=record_id, image=payload[end:])


def _aligned_magics(payload: bytes) -> Iterator[int]:
    """Where the magic number stands in the payload at a multiple of four."""
    at = payload.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            yield at
        at = payload.find(MAGIC, at + 1)


def _part(flag: int, body: bytes) -> bytes:
    return MAGIC + struct.pack("<I", flag << _LENGTH_BITS | len(body)) + body


def _broken(name: str, offset: int, what: str) -> ClusterError:
    return ClusterError(f"{name}: not a whole RecordIO file, at byte {offset}: {what}")
