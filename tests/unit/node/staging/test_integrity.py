"""node/staging/integrity.py: a table of S3's headers for an object, and bytes that are correct or wrong by one bit."""

import base64
import hashlib
import random
import tempfile
import zlib
from collections.abc import Callable
from functools import cache

import pytest

from node.staging import integrity

MIB = 2**20
CONTENT = random.Random(7).randbytes(18 * MIB + 123)


def in_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def of_parts(digest: Callable[[bytes], bytes], content: bytes, step: int) -> tuple[bytes, int]:
    digests = [digest(content[begin : begin + step]) for begin in range(0, len(content), step)]
    return digest(b"".join(digests)), len(digests)


def md5(data: bytes) -> bytes:
    return hashlib.md5(data).digest()


def crc32(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


@cache
def etag(step: int) -> str:
    digest, parts = of_parts(md5, CONTENT, step)
    return f'"{digest.hex()}-{parts}"'


def composite(digest: Callable[[bytes], bytes], step: int) -> str:
    whole, parts = of_parts(digest, CONTENT, step)
    return f"{in_base64(whole)}-{parts}"


SHA256 = in_base64(hashlib.sha256(CONTENT).digest())
CRC32 = in_base64(crc32(CONTENT))
MD5 = md5(CONTENT).hex()
KMS = {"x-amz-server-side-encryption": "aws:kms"}


@pytest.mark.parametrize(
    ("headers", "algorithm", "part_bytes", "certain"),
    [
        ({"x-amz-checksum-crc32": CRC32, "x-amz-checksum-type": "FULL_OBJECT"}, "crc32", None, True),
        ({"X-Amz-Checksum-CRC32": CRC32, "ETag": etag(8 * MIB), **KMS}, "crc32", None, True),
        ({"x-amz-checksum-sha256": SHA256, "ETag": f'"{MD5}"'}, "sha256", None, True),
        ({"ETag": f'"{MD5}"', "x-amz-server-side-encryption": "AES256"}, "md5", None, True),
        ({"etag": etag(8 * MIB), "x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, "md5", 8 * MIB, False),
        ({"etag": etag(10 * MIB)}, "md5", None, False),  # parts of 10, 15 or 16 MiB are possible
        ({"etag": etag(19 * MIB)}, "md5", len(CONTENT), True),  # one part
        ({"etag": etag(3 * MIB)}, "md5", None, False),
        (
            {"x-amz-checksum-crc32": composite(crc32, 8 * MIB), "x-amz-checksum-type": "COMPOSITE"},
            "crc32",
            8 * MIB,
            False,
        ),
        ({"x-amz-checksum-sha256": composite(lambda d: hashlib.sha256(d).digest(), 5 * MIB)}, "sha256", 5 * MIB, False),
    ],
)
def test_every_kind_of_digest(headers: dict[str, str], algorithm: str, part_bytes: int | None, certain: bool) -> None:  # noqa: FBT001 - a table
    check = integrity.find_check(headers, len(CONTENT))
    assert check.algorithm == algorithm
    assert check.certain == certain
    if headers.get("etag") != etag(3 * MIB):
        assert check.part_bytes == part_bytes
    for wrong in (False, True):
        content = bytearray(CONTENT)
        content[-7 * MIB] ^= wrong
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            assert check.matches(file.fileno(), lambda: None) == (not wrong)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"etag": f'"{MD5}"', **KMS},
        {"etag": f'"{MD5}"', "x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"etag": f'"{MD5}"', "x-amz-storage-class": "EXPRESS_ONEZONE"},
        {"etag": '"not-an-md5"', "x-amz-checksum-crc64nvme": "AAAAAAAAAAA="},
        {"x-amz-checksum-crc32": "AAAA"},
        {"x-amz-checksum-crc32": CRC32, "x-amz-checksum-type": "COMPOSITE"},
        {"etag": f'"{MD5}-20000"'},
    ],
)
def test_no_usable_digest(headers: dict[str, str]) -> None:
    assert integrity.find_check(headers, len(CONTENT)) is None


def test_a_known_part_size_is_certain() -> None:
    headers = {"etag": etag(10 * MIB)}
    check = integrity.find_check(headers, len(CONTENT), part_bytes=10 * MIB)
    assert (check.certain, check.part_bytes) == (True, 10 * MIB)
