"""One byte that is not as it was sent: what S3 takes note of, and what only the receiver can.

An upload is changed before S3 looks at it. So S3 refuses it where the client has said what it sent, by a digest of any
kind, and stores it where it has not: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

import io
import re
from wsgiref.types import WSGIEnvironment

from sandbox.refusals import Refusal

# aws-chunked, in which clients send a checksum behind the content: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]+)(?:;[^\r\n]*)?\r\n")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


def flip(content: bytes, at_byte: int) -> bytes:
    """The content with all bits of one byte turned over; of its last one where it has not so many. Pure."""
    if not content:
        return content
    at = min(at_byte, len(content) - 1)
    return b"%b%c%b" % (content[:at], content[at] ^ 0xFF, content[at + 1 :])


def flip_upload(environ: WSGIEnvironment, at_byte: int) -> bool:
    """Change a byte of what is being sent; False where nothing is."""
    body = environ["wsgi.input"].read()
    is_chunked = "aws-chunked" in environ.get("HTTP_CONTENT_ENCODING", "")
    at = find_in_chunks(body, at_byte) if is_chunked else at_byte if body else None
    environ["wsgi.input"] = io.BytesIO(body if at is None else flip(body, at))
    return at is not None


def find_in_chunks(body: bytes, at_byte: int) -> int | None:
    """Where that byte of the content, or its last one, stands in an aws-chunked body; None without content. Pure."""
    begin, left, last = 0, at_byte, None
    while head := _CHUNK_HEAD.match(body, begin):
        size = int(head[1], 16)
        if not size:
            break
        if left < size:
            return head.end() + left
        left -= size
        last = head.end() + size - 1
        begin = head.end() + size + len(b"\r\n")
    return last


def find_refusal(environ: WSGIEnvironment) -> Refusal | None:
    """S3's answer to an upload whose content is not what the client said; None where it said nothing of it. Pure."""
    announced = {name for name in environ if name.startswith("HTTP_X_AMZ_CHECKSUM_")}
    announced -= {"HTTP_X_AMZ_CHECKSUM_ALGORITHM", "HTTP_X_AMZ_CHECKSUM_MODE", "HTTP_X_AMZ_CHECKSUM_TYPE"}
    if announced or "HTTP_CONTENT_MD5" in environ or environ.get("HTTP_X_AMZ_TRAILER", "").startswith("x-amz-checksum"):
        return _refusal("BadDigest", "The digest you specified did not match the calculated checksum.")
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if _HEX_SHA256.fullmatch(signed):
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        return _refusal("XAmzContentSHA256Mismatch", message)
    if signed.startswith("STREAMING-AWS4-"):  # each chunk has a signature, of its content too
        return _refusal("SignatureDoesNotMatch", "The request signature we calculated does not match.", "403 Forbidden")
    return None


def _refusal(code: str, message: str, status: str = "400 Bad Request") -> Refusal:
    return Refusal(status=status, code=code, query_code=code, json_code=code, s3_code=code, message=message)
