"""What S3 says about an object, and how its bytes are verified with it: with hashlib and zlib alone.

    check = find_check(headers, size_bytes)     # of a HEAD or GET that asked with x-amz-checksum-mode: ENABLED
    check.feed(data)                            # in order; or several pieces side by side:
    piece = check.piece(begin, length); piece.feed(data); piece.finish()
    check.matches()

S3 keeps an ETag, and checksums that the sender or S3 itself has made. Which of them is a digest of the content, and
of which cut of it: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html. An object that
was sent in parts has a checksum of all its bytes (FULL_OBJECT), or a digest of its parts' digests ("VALUE-PARTS"), as
the ETag has; the size of the parts is not told with it, but can be deduced where it is a usual one.

Python 3.6 and later, standard library only.
"""

import base64
import binascii
import hashlib
import re
import sys
import threading
import zlib

MIB = 1 << 20
# What programs cut objects into: ours, aws, boto3 8; Go 5; s5cmd 50; rclone 5 and 64; s3cmd 15; Hadoop 64, 100, 128.
USUAL_PARTS = tuple(mib * MIB for mib in (8, 5, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024))
UNUSUAL_PARTS = tuple(mb * 10**6 for mb in (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100))
MAX_PARTS = 10000
ANY = "any"
# Cheapest first; every one of them tells a single wrong byte.
ALGORITHMS = ("crc32", "sha256", "sha1", "md5")
SIZES = {"crc32": 4, "md5": 16, "sha1": 20, "sha256": 32}
ETAG = re.compile(r'"?([0-9a-fA-F]{32})(?:-([0-9]+))?"?')
# For machines where FIPS forbids MD5 for anything else.
NOT_FOR_SECURITY = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
CRC_POLYNOMIAL = 0xEDB88320  # zlib's: bits are in reverse


class Check(object):
    """How an object's bytes are compared with what S3 says about them.

    algorithm: a name in ALGORITHMS. cut: how the object may be cut into pieces that are fed side by side: ANY way, into
    parts of so many bytes (the last one is shorter), or None: in order alone. certain: the parts' size is known, so
    that a difference is damage; where it was deduced, it may be the object of a program with unusual habits: ask
    again with the Content-Length of `HEAD ?partNumber=1` as part_bytes.
    """

    def __init__(self, algorithm, expected, size_bytes, *, parts=None, cuts=(), certain=True):
        self.algorithm = algorithm
        self.certain = certain
        self.in_parts = parts is not None
        self.size_bytes = size_bytes
        self._expected = expected
        self._parts = parts  # None: the digest is of all bytes
        self._cuts = tuple(cuts)
        self._fed = 0
        self._running = None  # what feed() goes on with
        self._pieces = {}  # of those that are fed side by side, the digests by where they begin
        self._lock = threading.Lock()
        if parts is None:
            self.cut = ANY if algorithm == "crc32" else None
        else:
            self.cut = self._cuts[0] if len(self._cuts) == 1 else None

    def feed(self, data):
        """The next bytes of the object: for who has them in order. data: bytes, or a memoryview of bytes."""
        if self._running is None:
            if self._parts is None:
                self._running = [_Whole(self.algorithm)]
            else:
                self._running = [_OfParts(self.algorithm, part_bytes) for part_bytes in self._cuts]
        for digest in self._running:
            digest.feed(data)
        self._fed += len(data)

    def piece(self, begin, length):
        """A piece that is fed by itself, for who fetches several side by side; `cut` says where pieces may begin."""
        whole = self.cut if self.cut not in (None, ANY) else None
        if self.cut is None or (whole and (begin % whole or length != min(whole, self.size_bytes - begin))):
            raise ValueError("an object cannot be verified in a piece of %d bytes from %d on" % (length, begin))
        return Piece(self, begin, length)

    def add(self, begin, length, digest):
        """A piece's digest, as Piece.finish gives it; once for every piece. For any thread."""
        with self._lock:
            self._pieces[begin] = (length, digest)

    def matches(self):
        """Whether all of the object was fed, and is what S3 says it is."""
        if self._pieces:
            return self._join_pieces() == self._expected
        if self._running is None:
            self.feed(b"")
        return self._fed == self.size_bytes and any(item.digest() == self._expected for item in self._running)

    def _join_pieces(self):
        """The object's digest from those of its pieces; None where one is missing."""
        end, joined, digests = 0, 0, []
        for begin, (length, digest) in sorted(self._pieces.items()):
            if begin != end:
                return None
            end += length
            digests.append(digest)
            if self._parts is None:
                joined = combine_crc32(joined, int.from_bytes(digest, "big"), length)
        if end != self.size_bytes:
            return None
        return joined.to_bytes(4, "big") if self._parts is None else _digest(self.algorithm, b"".join(digests))


class Piece(object):
    """A running digest of a piece; for one thread at a time."""

    def __init__(self, check, begin, length):
        self.begin = begin
        self.length = length
        self._check = check
        self._digest = _Whole(check.algorithm)
        self._fed = 0

    def feed(self, data):
        """The next bytes of the piece."""
        self._digest.feed(data)
        self._fed += len(data)

    def finish(self):
        """All of it was fed: its digest, which the object's is made of."""
        if self._fed != self.length:
            raise ValueError("%d bytes were fed of a piece of %d" % (self._fed, self.length))
        digest = self._digest.digest()
        self._check.add(self.begin, self.length, digest)
        return digest


class _Whole(object):
    def __init__(self, algorithm):
        self._crc = 0
        self._hash = None if algorithm == "crc32" else _new(algorithm)

    def feed(self, data):
        if self._hash is None:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._hash.update(data)

    def digest(self):
        return self._crc.to_bytes(4, "big") if self._hash is None else self._hash.digest()


class _OfParts(object):
    """The digest of the parts' digests."""

    def __init__(self, algorithm, part_bytes):
        self._algorithm = algorithm
        self._part_bytes = part_bytes
        self._done = []
        self._part = _Whole(algorithm)
        self._left = part_bytes

    def feed(self, data):
        view = memoryview(data)
        while view:
            if not self._left:
                self._done.append(self._part.digest())
                self._part, self._left = _Whole(self._algorithm), self._part_bytes
            self._part.feed(view[: self._left])
            taken = min(self._left, len(view))
            self._left -= taken
            view = view[taken:]

    def digest(self):
        return _digest(self._algorithm, b"".join(self._done) + self._part.digest())


def find_check(headers, size_bytes, part_bytes=None):
    """How an object of so many bytes is verified; None where S3 says nothing that this machine can calculate.

    headers: a mapping of what a HEAD or GET of the whole object answered, names in whatever case; x-amz-checksum-* are
    there only for who asked with `x-amz-checksum-mode: ENABLED`. part_bytes: the size of the first part where it is
    known (Content-Length of HEAD with ?partNumber=1).
    """
    told = {name.lower(): value for name, value in headers.items()}
    found = []
    for algorithm in ALGORITHMS:
        value = _find_checksum(told, algorithm)
        if value is not None:
            check = _make_check(algorithm, value[0], value[1], size_bytes, part_bytes)
            if check is not None:
                found.append(check)
    # A digest of all bytes needs no guess.
    return min(found, key=lambda check: (not check.certain, check.in_parts)) if found else None


def _find_checksum(told, algorithm):
    """(digest, number of parts or None for one of all bytes), or None."""
    if algorithm == "md5":
        return _find_etag(told)
    value, _, parts = told.get("x-amz-checksum-" + algorithm, "").partition("-")
    try:
        digest = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    if len(digest) != SIZES[algorithm] or (parts and not parts.isdigit()):
        return None
    if told.get("x-amz-checksum-type", "").upper() == "COMPOSITE" and not parts:
        return None
    return digest, int(parts) if parts else None


def _find_etag(told):
    """An ETag is an MD5, but for what is encrypted with the user's own keys, and in S3 Express.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    if told.get("x-amz-server-side-encryption", "AES256") != "AES256":
        return None
    if "x-amz-server-side-encryption-customer-algorithm" in told:
        return None
    if told.get("x-amz-storage-class") == "EXPRESS_ONEZONE":
        return None
    found = ETAG.fullmatch(told.get("etag", "").strip())
    if found is None:
        return None
    return binascii.unhexlify(found.group(1)), int(found.group(2)) if found.group(2) else None


def _make_check(algorithm, digest, parts, size_bytes, part_bytes):
    if parts is None:
        return Check(algorithm, digest, size_bytes)
    if parts == 1:
        cuts, certain = (max(size_bytes, 1),), True
    elif part_bytes is not None:
        cuts, certain = (part_bytes,), True
    else:
        cuts, certain = find_part_sizes(size_bytes, parts), False
    cuts = [cut for cut in cuts if cut > 0 and -(-size_bytes // cut) in (parts, 0)]
    return Check(algorithm, digest, size_bytes, parts=parts, cuts=cuts, certain=certain) if cuts else None


def find_part_sizes(size_bytes, parts):
    """The sizes of parts with which an object of so many bytes likely has so many parts, the likeliest first."""
    if parts < 1 or parts > MAX_PARTS or size_bytes < parts:
        return ()
    even = -(-size_bytes // parts)  # some cut evenly, into whole MiB or not
    for sizes in (USUAL_PARTS, UNUSUAL_PARTS, (-(-even // MIB) * MIB,), (even,)):
        found = tuple(size for size in sizes if -(-size_bytes // size) == parts)
        if found:
            return found
    return ()


def combine_crc32(first, second, second_bytes):
    """The CRC-32 of two pieces one after the other, from theirs and the length of the second.

    Appending a byte multiplies by x^8 modulo CRC's polynomial, as zlib's crc32_combine has it.
    """
    power, square, times = 1 << 31, 1 << 23, second_bytes  # 1 and x^8, lowest power in the highest bit
    while times:
        if times & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        times >>= 1
    return _multiply(power, first) ^ second


def _multiply(left, right):
    """The product of two polynomials over GF(2) modulo CRC's."""
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = (right >> 1) ^ CRC_POLYNOMIAL if right & 1 else right >> 1
    return product


def _new(algorithm):
    return hashlib.new(algorithm, **NOT_FOR_SECURITY)


def _digest(algorithm, data):
    whole = _Whole(algorithm)
    whole.feed(data)
    return whole.digest()
