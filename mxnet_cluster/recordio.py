"""dmlc's RecordIO, the file format of MXNet's records, without MXNet.

A file is a sequence of records. A record is one part, or several if its payload contains the magic number:

    0xced7230a | cflag << 29 | length | payload | 0..3 bytes of padding up to a multiple of four

All numbers are little-endian and 32 bits wide. A reader that starts in the middle of a file looks for the magic number
at multiples of four, so a payload must not contain it at such a position. The writer removes it and splits the record
at that point, and the reader restores it. cflag is 0 for a whole record, and 1, 2 and 3 for the first, middle and last
parts of a record.

Source: dmlc-core, include/dmlc/recordio.h and src/recordio.cc. A payload that MXNet's image iterators read begins with
an IRHeader (mxnet/recordio.py): flag, label, id and id2. If flag > 0, `flag` labels follow and replace the label.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from mxnet_cluster.errors import ClusterError

MAGIC = struct.pack("<I", 0xCED7230A)
_LENGTH_BITS = 29
MAX_PAYLOAD_BYTES = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PART = struct.Struct("<II")
_IMAGE_HEADER = struct.Struct("<IfQQ")


def encode_record(payload: bytes) -> bytes:
    """Returns one record as in a file, with padding. Raises ValueError for more than MAX_PAYLOAD_BYTES."""
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


def scan_records(file: BinaryIO, *, name: str, offset: int = 0, most: int | None = None) -> Iterator[bytes]:
    """Yields all records, encoded, with all parts and padding, from the file's position, `offset`, to its end.

    name: the file's name, for errors. most: reads only so many bytes of each part, and passes over the rest. Raises
    ClusterError, with the offset in bytes, if the file is truncated or not RecordIO.
    """
    parts: list[bytes] = []
    while header := file.read(_PART.size):
        flag, length = _parse_part(header, name=name, offset=offset, inside=bool(parts))
        padded = length + -length % 4
        body = file.read(padded if most is None else min(padded, most))
        left = padded - len(body)
        if left:
            file.seek(left - 1, io.SEEK_CUR)
        if left and not file.read(1):
            raise broken(name, offset, f"the file ends inside a record of {length} bytes")
        parts += (header, body)
        offset += _PART.size + padded
        if flag in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        raise broken(name, offset, "the file ends between two parts of a record")


def _parse_part(header: bytes, *, name: str, offset: int, inside: bool) -> tuple[int, int]:
    """Returns the kind and the length of the record part whose 8-byte header is at `offset`.

    inside: whether it follows another part of the same record. Raises ClusterError if the part is not valid there.
    """
    if len(header) < _PART.size:
        raise broken(name, offset, "the file ends inside a record's header")
    magic, field = _PART.unpack(header)
    if header[: len(MAGIC)] != MAGIC:
        raise broken(name, offset, f"expected the magic number 0xced7230a, found {magic:#010x}")
    flag, length = field >> _LENGTH_BITS, field & MAX_PAYLOAD_BYTES
    if flag > _LAST or (flag in (_WHOLE, _FIRST)) == inside:
        raise broken(name, offset, f"a record part of kind {flag} cannot be here")
    return flag, length


def decode_record(content: bytes) -> bytes:
    """Returns the payload of one encoded record, or the beginning of it if its parts are incomplete."""
    parts = []
    at = 0
    while at + _PART.size <= len(content):
        length = _PART.unpack_from(content, at)[1] & MAX_PAYLOAD_BYTES
        begin = at + _PART.size
        parts.append(content[begin : begin + length])
        at = begin + length + -length % 4
    return MAGIC.join(parts)


def find_labels(payload: bytes) -> tuple[float, ...] | None:
    """Returns the labels at the beginning of an image's payload, as 32-bit floats, or None if it is too short."""
    if len(payload) < _IMAGE_HEADER.size:
        return None
    flag, label, _, _ = _IMAGE_HEADER.unpack_from(payload)
    if flag == 0:
        return (label,)
    if len(payload) < _IMAGE_HEADER.size + 4 * flag:
        return None
    return struct.unpack_from(f"<{flag}f", payload, _IMAGE_HEADER.size)


def find_head(words: bytes) -> int | None:
    """Returns the position of the first record in `words`, or None.

    words: bytes that begin at a multiple of four in their file.
    Ignores the last four bytes, which may be a magic number without its length.
    """
    at = words.find(MAGIC)
    while 0 <= at <= len(words) - _PART.size:
        if at % 4 == 0 and _PART.unpack_from(words, at)[1] >> _LENGTH_BITS in (_WHOLE, _FIRST):
            return at
        at = words.find(MAGIC, at + 1)
    return None


@dataclass(frozen=True)
class ImageRecord:
    """A payload for MXNet's image iterators: labels, an id, and the encoded image (PNG or JPEG)."""

    labels: tuple[float, ...]
    record_id: int
    image: bytes


def encode_image(record: ImageRecord) -> bytes:
    """Returns the payload for one image: an IRHeader and the encoded image. Raises ValueError without a label."""
    if not record.labels:
        raise ValueError("an image record needs a label")
    if len(record.labels) == 1:
        return _IMAGE_HEADER.pack(0, record.labels[0], record.record_id, 0) + record.image
    labels = struct.pack(f"<{len(record.labels)}f", *record.labels)
    return _IMAGE_HEADER.pack(len(record.labels), 0.0, record.record_id, 0) + labels + record.image


def decode_image(payload: bytes, *, name: str) -> ImageRecord:
    """Returns the labels, id and encoded image in a payload. The labels are 32-bit floats.

    name: the record's name, for errors. Raises ClusterError if the payload is too short for its header.
    """
    labels = find_labels(payload)
    if labels is None:
        raise ClusterError(f"{name}: {len(payload)} bytes are too short for an image record and its labels")
    flag, _, record_id, _ = _IMAGE_HEADER.unpack_from(payload)
    return ImageRecord(labels=labels, record_id=record_id, image=payload[_IMAGE_HEADER.size + 4 * flag :])


def _aligned_magics(payload: bytes) -> Iterator[int]:
    """Yields the positions of the magic number in the payload that are multiples of four."""
    at = payload.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            yield at
        at = payload.find(MAGIC, at + 1)


def _part(flag: int, body: bytes) -> bytes:
    return MAGIC + struct.pack("<I", flag << _LENGTH_BITS | len(body)) + body


def broken(name: str, offset: int, what: str) -> ClusterError:
    """Returns the error for a broken file."""
    return ClusterError(f"{name}: not a whole RecordIO file, at byte {offset}: {what}")
