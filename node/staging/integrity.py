"""Verifies an object's bytes against the digests that S3 stores for it.

    check = find_check(headers, size_bytes)     # of a HEAD or GET request with x-amz-checksum-mode: ENABLED
    check.matches(file, go_on)                  # an open file
    check.matches_parts(digests)                # instead, if the part size is known: of parts hashed on their way

S3 stores an ETag, and checksums computed by the sender or by S3 itself. For the bytes that each of them covers, see
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html. An object sent in parts has a
checksum of all its bytes (FULL_OBJECT), or a digest of its parts' digests ("VALUE-PARTS"), like its ETag. S3 does not
report the part size with it, but a common part size can be deduced.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from foundation.thread_pool import map_in_threads

try:
    from isal.isal_zlib import crc32  # by processor instructions that zlib does not use: takes a tenth of the time
except ImportError:  # on the nodes
    from zlib import crc32

MIB = 1 << 20
# Part sizes of programs in MiB: ours, aws, boto3 8; Go 5; s5cmd 50; rclone 5 and 64; s3cmd 15; Hadoop 64, 100, 128.
USUAL_PARTS = tuple(mib * MIB for mib in (8, 5, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024))
MAX_PARTS = 10000
"""S3's limit: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html."""
# The cheapest first; each of them detects a single wrong byte.
DIGEST_BYTES = {"crc32": 4, "sha256": 32, "md5": 16}
ETAG = re.compile(r'"?([0-9a-fA-F]{32})(?:-([0-9]+))?"?')
HASHED_AT_ONCE = min(4, os.cpu_count() or 1)
"""Parts of a file hashed at once: one for each processor."""
Data = bytes | memoryview
GoOn = Callable[[], None]


class Digest(Protocol):
    """A running digest, like those of hashlib."""

    def update(self, data: Data, /) -> None:
        """Adds the next bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes so far."""


class Check(NamedTuple):
    """Compares an object's bytes with a digest that S3 stores.

    part_sizes: the possible part sizes in bytes, if `expected` is a digest of the parts' digests; empty if it is one of
    all bytes. certain: whether a difference means damage. If not, the part size was guessed, and the guess may be
    wrong: call find_check again with the Content-Length of `HEAD ?partNumber=1` as part_bytes.
    """

    algorithm: str
    expected: bytes
    size_bytes: int
    part_sizes: tuple[int, ...] = ()
    certain: bool = True

    @property
    def part_bytes(self) -> int | None:
        """The size of the parts whose digests matches_parts takes; None if there are none, or several are possible."""
        return self.part_sizes[0] if len(self.part_sizes) == 1 else None

    def matches(self, file: int, go_on: GoOn) -> bool:
        """Whether an open file begins with the object's bytes.

        go_on: called regularly; raises to stop. Raises OSError if the file is shorter.
        """
        return any(map(self.is_digest, self.compute(file, go_on)))

    def compute(self, file: int, go_on: GoOn) -> Iterator[bytes]:
        """Yields the digests of an open file, one for each possible part size. Arguments and errors: see `matches`."""

        def hash_part(part: range, _stop: GoOn) -> bytes:
            return _hash(self.algorithm, file, part, go_on)

        size_bytes = self.size_bytes
        if not self.part_sizes:
            yield hash_part(range(size_bytes), go_on)
        for step in self.part_sizes:
            parts = [range(begin, min(begin + step, size_bytes)) for begin in range(0, max(size_bytes, 1), step)]
            yield self._join(map_in_threads(hash_part, parts, threads=HASHED_AT_ONCE))

    def _join(self, digests: Iterable[bytes]) -> bytes:
        whole = new_digest(self.algorithm)
        whole.update(b"".join(digests))
        return whole.digest()

    def matches_parts(self, digests: Iterable[bytes]) -> bool:
        """Whether the object has S3's digest. digests: those of its parts, of part_bytes each."""
        return self.is_digest(self._join(digests))

    def is_digest(self, digest: bytes) -> bool:
        """Whether this is S3's digest of the object."""
        return digest == self.expected


def _hash(algorithm: str, file: int, part: range, go_on: GoOn) -> bytes:
    """The digest of these bytes of a file."""
    digest, at = new_digest(algorithm), part.start
    block = memoryview(bytearray(min(MIB, max(len(part), 1))))
    while at < part.stop:
        go_on()
        count = os.preadv(file, [block[: part.stop - at]], at)
        if not count:
            raise OSError("it became shorter while it was read")
        digest.update(block[:count])
        at += count
    return digest.digest()


class _Crc32:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: Data, /) -> None:
        self._crc = crc32(data, self._crc)

    def digest(self) -> bytes:
        return self._crc.to_bytes(4, "big")


def new_digest(algorithm: str) -> Digest:
    """Returns a new digest, to which no bytes have been added."""
    # usedforsecurity: FIPS allows MD5 only where it does not provide security.
    return _Crc32() if algorithm == "crc32" else hashlib.new(algorithm, usedforsecurity=False)


def find_check(headers: Mapping[str, str], size_bytes: int, part_bytes: int | None = None) -> Check | None:
    """Returns the check for an object of this size; None if S3 stores no digest that this machine can calculate.

    headers: those of the answer to a HEAD or GET of the whole object; they contain x-amz-checksum-* only if the request
    had `x-amz-checksum-mode: ENABLED`. part_bytes: the size of the first part, if known (Content-Length of HEAD with
    ?partNumber=1).
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    found = []
    for algorithm in DIGEST_BYTES:
        value = _find_etag(by_name) if algorithm == "md5" else _find_checksum(by_name, algorithm)
        check = value and _make_check(algorithm, value[0], value[1], size_bytes, part_bytes)
        if check:
            found.append(check)
    # A digest of all bytes needs no guess.
    return min(found, key=lambda check: (not check.certain, bool(check.part_sizes))) if found else None


def _find_checksum(by_name: Mapping[str, str], algorithm: str) -> tuple[bytes, int | None] | None:
    """Returns (digest, number of parts), with None as the number for a digest of all bytes; None without a digest."""
    value, _, parts = by_name.get(f"x-amz-checksum-{algorithm}", "").partition("-")
    try:
        digest = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    if len(digest) != DIGEST_BYTES[algorithm] or (parts and not parts.isdigit()):
        return None
    if by_name.get("x-amz-checksum-type", "").upper() == "COMPOSITE" and not parts:
        return None
    if not parts and algorithm == "sha256":
        # For an object in parts, S3 computes it only from the parts' digests, but not every server reports that.
        of_parts = ETAG.fullmatch(by_name.get("etag", "").strip())
        parts = (of_parts and of_parts[2]) or ""
    return digest, int(parts) if parts else None


def _find_etag(by_name: Mapping[str, str]) -> tuple[bytes, int | None] | None:
    """Returns the same for the ETag, which is an MD5 unless the user's own keys encrypt the object, or in S3 Express.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    if by_name.get("x-amz-server-side-encryption", "AES256") != "AES256":
        return None
    if "x-amz-server-side-encryption-customer-algorithm" in by_name:
        return None
    if by_name.get("x-amz-storage-class") == "EXPRESS_ONEZONE":
        return None
    found = ETAG.fullmatch(by_name.get("etag", "").strip())
    return (bytes.fromhex(found[1]), int(found[2]) if found[2] else None) if found else None


def _make_check(
    algorithm: str, digest: bytes, parts: int | None, size_bytes: int, part_bytes: int | None
) -> Check | None:
    if parts is None:
        return Check(algorithm, digest, size_bytes)
    if parts == 1:
        sizes: Sequence[int] = (max(size_bytes, 1),)
    else:
        sizes = (part_bytes,) if part_bytes is not None else find_part_sizes(size_bytes, parts)
    sizes = [size for size in sizes if size > 0 and -(-size_bytes // size) in (parts, 0)]
    certain = parts == 1 or part_bytes is not None
    return Check(algorithm, digest, size_bytes, tuple(sizes), certain) if sizes else None


def find_part_sizes(size_bytes: int, parts: int) -> tuple[int, ...]:
    """Returns the likely part sizes of an object of this size with this many parts, the most likely first."""
    if parts < 1 or parts > MAX_PARTS or size_bytes < parts:
        return ()
    even = -(-size_bytes // parts)  # some programs use equal parts, of whole MiB or not
    for sizes in (USUAL_PARTS, (-(-even // MIB) * MIB,), (even,)):
        found = tuple(size for size in sizes if -(-size_bytes // size) == parts)
        if found:
            return found
    return ()
