"""train/s3/content.py: ranges are compared with S3's digest of the whole object."""

import base64
import hashlib
import random
import zlib

import pytest

from train.s3.content import find_digests

RANGE_BYTES = 8 * 2**20
CONTENT = random.Random(7).randbytes(2 * RANGE_BYTES + 12_345)


def in_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def sha256_of_parts(part_bytes: int) -> str:
    parts = [CONTENT[begin : begin + part_bytes] for begin in range(0, len(CONTENT), part_bytes)]
    whole = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return f"{in_base64(whole.digest())}-{len(parts)}"


CRC32 = {"x-amz-checksum-crc32": in_base64(zlib.crc32(CONTENT).to_bytes(4, "big"))}


@pytest.mark.parametrize("headers", [CRC32, {"x-amz-checksum-sha256": sha256_of_parts(RANGE_BYTES)}])
@pytest.mark.parametrize("wrong", [None, 0, RANGE_BYTES, len(CONTENT) - 1], ids=str)
def test_one_wrong_byte_is_detected(headers: dict[str, str], wrong: int | None) -> None:
    compared = find_digests(headers, len(CONTENT), RANGE_BYTES)
    received = bytearray(CONTENT)
    if wrong is not None:
        received[wrong] ^= 1
    digests = []
    for begin in range(0, len(received), RANGE_BYTES):
        digest = compared.begin()
        content = received[begin : begin + RANGE_BYTES]
        digest.update(memoryview(content)[:1000])
        digest.update(memoryview(content)[1000:])
        digests.append(digest.digest())
    assert compared.match(digests) is (wrong is None)
