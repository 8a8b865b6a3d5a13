"""Verifies an object's bytes against the digests that S3 stores for it.

    check = find_check(headers, size_bytes)     # of a HEAD or GET request with x-amz-checksum-mode: ENABLED
    check.feed(data)                            # the whole object, in order; then:
    check.matches()
    check.matches_parts(digests)                # instead, if the part size is known: of parts hashed in parallel

S3 stores an ETag, and checksums computed by the sender or by S3 itself. For the bytes that each of them covers, see
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html. An object sent in parts has a
checksum of all its bytes (FULL_OBJECT), or a digest of its parts' digests ("VALUE-PARTS"), like its ETag. S3 does not
report the part size with it, but a common part size can be deduced.
"""

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

MIB = 1 << 20
# Part sizes of programs in MiB: ours, aws, boto3 8; Go 5; s5cmd 50; rclone 5 and 64; s3cmd 15; Hadoop 64, 100, 128.
USUAL_PARTS = tuple(mib * MIB for mib in (8, 5, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024))
MAX_PARTS = 10000
# The cheapest first; each of them detects a single wrong byte.
DIGEST_BYTES = {"crc32": 4, "sha256": 32, "md5": 16}
ETAG = re.compile(r'"?([0-9a-fA-F]{32})(?:-([0-9]+))?"?')
Data = bytes | memoryview


class Digest(Protocol):
    """A running digest, like those of hashlib."""

    def update(self, data: Data, /) -> None:
        """Adds the next bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes so far."""


class Check:
    """Compares an object's bytes with a digest that S3 stores.

    part_sizes: the possible part sizes in bytes, if `expected` is a digest of the parts' digests; empty if it is one of
    all bytes. certain: whether a difference means damage. If not, the part size was guessed, and the guess may be
    wrong: call find_check again with the Content-Length of `HEAD ?partNumber=1` as part_bytes.
    """

    def __init__(
        self, algorithm: str, expected: bytes, size_bytes: int, *, part_sizes: Sequence[int] = (), certain: bool = True
    ) -> None:
        self.algorithm = algorithm
        self.certain = certain
        self.size_bytes = size_bytes
        self.part_sizes = tuple(part_sizes)
        self._expected = expected
        self._fed = 0
        self._running: list[Digest] = [_DigestOfParts(algorithm, size) for size in part_sizes]
        if not part_sizes:
            self._running.append(new_digest(algorithm))

    @property
    def part_bytes(self) -> int | None:
        """The size of the parts whose digests matches_parts takes; None if the bytes must be fed in order."""
        return self.part_sizes[0] if len(self.part_sizes) == 1 else None

    def feed(self, data: Data) -> None:
        """Adds the next bytes of the object."""
        for running in self._running:
            running.update(data)
        self._fed += len(data)

    @property
    def found(self) -> tuple[bytes, ...]:
        """The digests of the bytes so far, one for each possible part size."""
        return tuple(running.digest() for running in self._running)

    def matches(self) -> bool:
        """Whether the whole object was fed and has S3's digest."""
        return self._fed == self.size_bytes and any(map(self.is_digest, self.found))

    def matches_parts(self, digests: Iterable[bytes]) -> bool:
        """Whether the object has S3's digest. digests: those of its parts, of part_bytes each."""
        whole = new_digest(self.algorithm)
        whole.update(b"".join(digests))
        return self.is_digest(whole.digest())

    def is_digest(self, digest: bytes) -> bool:
        """Whether this is S3's digest of the object."""
        return digest == self._expected


class _Crc32:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: Data, /) -> None:
        self._crc = zlib.crc32(data, self._crc)

    def digest(self) -> bytes:
        return self._crc.to_bytes(4, "big")


class _DigestOfParts:
    """The digest of the parts' digests."""

    def __init__(self, algorithm: str, part_bytes: int) -> None:
        self._algorithm = algorithm
        self._part_bytes = part_bytes
        self._done: list[bytes] = []
        self._part = new_digest(algorithm)
        self._left = part_bytes

    def update(self, data: Data, /) -> None:
        view = memoryview(data)
        while view:
            if not self._left:
                self._done.append(self._part.digest())
                self._part, self._left = new_digest(self._algorithm), self._part_bytes
            self._part.update(view[: self._left])
            taken = min(self._left, len(view))
            self._left -= taken
            view = view[taken:]

    def digest(self) -> bytes:
        whole = new_digest(self._algorithm)
        whole.update(b"".join(self._done) + self._part.digest())
        return whole.digest()


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
    return Check(algorithm, digest, size_bytes, part_sizes=sizes, certain=certain) if sizes else None


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
