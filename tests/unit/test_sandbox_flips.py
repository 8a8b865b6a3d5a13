"""A changed byte: where it stands in what a client sends, and whether S3 would notice."""

import io
from typing import Any

import pytest

from sandbox.flips import find_in_chunks, find_refusal, flip, flip_upload

SIGNED = b"4;chunk-signature=00ff\r\nabcd\r\n3;chunk-signature=00ff\r\nefg\r\n0;chunk-signature=00ff\r\n\r\n"
PLAIN = b"4\r\nabcd\r\n3\r\nefg\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"


def test_one_byte_is_another() -> None:
    assert flip(b"abc", 1) == bytes([ord("a"), ord("b") ^ 0xFF, ord("c")])
    assert flip(b"abc", 99)[:2] == b"ab"
    assert flip(b"", 0) == b""


@pytest.mark.parametrize("body", [SIGNED, PLAIN])
@pytest.mark.parametrize(("at_byte", "found"), [(0, b"a"), (3, b"d"), (4, b"e"), (6, b"g"), (7, b"g"), (999, b"g")])
def test_a_byte_is_of_the_content_and_not_of_what_is_between(body: bytes, at_byte: int, found: bytes) -> None:
    at = find_in_chunks(body, at_byte)
    assert at is not None
    assert body[at : at + 1] == found


def test_nothing_is_changed_where_nothing_is_sent() -> None:
    for body, headers in ((b"", {}), (b"0\r\n\r\n", {"HTTP_CONTENT_ENCODING": "aws-chunked"})):
        environ: dict[str, Any] = {"wsgi.input": io.BytesIO(body), **headers}
        assert not flip_upload(environ, 0)
        assert environ["wsgi.input"].read() == body


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, None),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "UNSIGNED-PAYLOAD", "HTTP_X_AMZ_CHECKSUM_MODE": "ENABLED"}, None),
        ({"HTTP_CONTENT_MD5": "x"}, "BadDigest"),
        ({"HTTP_X_AMZ_CHECKSUM_CRC64NVME": "x"}, "BadDigest"),
        ({"HTTP_X_AMZ_TRAILER": "x-amz-checksum-crc32"}, "BadDigest"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "0" * 64}, "XAmzContentSHA256Mismatch"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "SignatureDoesNotMatch"),
    ],
)
def test_s3_refuses_what_is_not_as_the_client_said(headers: dict[str, str], code: str | None) -> None:
    refusal = find_refusal(headers)
    assert (refusal.s3_code if refusal else None) == code
