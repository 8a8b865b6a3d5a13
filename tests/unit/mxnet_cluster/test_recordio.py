"""RecordIO without MXNet; test_records.py compares it with MXNet."""

import io
import struct

import pytest

from foundation.errors import ClusterError
from mxnet_cluster.recordio import (
    MAGIC,
    ImageRecord,
    decode_image,
    encode_image,
    encode_record,
    scan_records,
)


def part(flag: int, body: bytes) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | len(body)) + body


@pytest.mark.parametrize(
    ("content", "at", "what"),
    [
        (b"abc", 0, "header"),
        (encode_record(b"abcd")[:-1], 0, "inside a record of 4 bytes"),
        (encode_record(b"abcd") + b"no magic", 12, "magic number"),
        (part(1, b"abcd"), 12, "between two parts"),
        (part(3, b"abcd"), 0, "kind 3"),
        (part(1, b"") + part(0, b""), 8, "kind 0"),
    ],
)
def test_broken_files(content: bytes, at: int, what: str) -> None:
    for most in (None, 0, 2):
        with pytest.raises(ClusterError, match=rf"x\.rec: .* at byte {at}: .*{what}"):
            list(scan_records(io.BytesIO(content), name="x.rec", most=most))


def test_the_image_header_is_mxnets() -> None:
    one = ImageRecord(labels=(3.0,), record_id=7, image=b"png")
    assert encode_image(one) == struct.pack("<IfQQ", 0, 3.0, 7, 0) + b"png"
    two = ImageRecord(labels=(3.0, 4.5), record_id=7, image=b"png")
    assert encode_image(two) == struct.pack("<IfQQff", 2, 0.0, 7, 0, 3.0, 4.5) + b"png"
    assert [decode_image(encode_image(image), name="x") for image in (one, two)] == [one, two]


@pytest.mark.parametrize("payload", [b"", bytes(23), struct.pack("<IfQQ", 2, 0.0, 7, 0) + bytes(7)])
def test_short_image_records(payload: bytes) -> None:
    with pytest.raises(ClusterError, match="too short"):
        decode_image(payload, name="x")
