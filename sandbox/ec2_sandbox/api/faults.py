"""Faults between the client and the API: refused calls, lost replies, and truncated or changed S3 content."""

import io
import re
import time
from collections.abc import Callable, Iterable, Iterator
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ec2_sandbox.api.log import ACCESS_KEY, CALL_KEY, FAULT_KEY
from ec2_sandbox.api.refusals import BROKEN, SLOW_DOWN, THROTTLED, Refusal, deny, refuse
from ec2_sandbox.faults import Fault, FaultBook

# aws-chunked: clients send a checksum after the content. https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]+)(?:;[^\r\n]*)?\r\n")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")

CHUNK_BYTES = 64 * 1024
KINDS_OF_S3 = ("s3-503", "unauthorized", "s3-cut", "s3-flip")
KINDS_OF_OTHERS = ("throttle", "unauthorized", "internal-error", "lost-reply")
REFUSALS = {"s3-503": SLOW_DOWN, "throttle": THROTTLED, "internal-error": BROKEN}


def flip(content: bytes, at_byte: int) -> bytes:
    """Inverts all bits of the byte at this position, or of the last byte if the content is shorter. Pure."""
    if not content:
        return content
    at = min(at_byte, len(content) - 1)
    return b"%b%c%b" % (content[:at], content[at] ^ 0xFF, content[at + 1 :])


def flip_upload(environ: WSGIEnvironment, at_byte: int) -> bool:
    """Changes one byte of a request's body. Returns False if the body is empty."""
    body = environ["wsgi.input"].read()
    is_chunked = "aws-chunked" in environ.get("HTTP_CONTENT_ENCODING", "")
    at = find_in_chunks(body, at_byte) if is_chunked else at_byte if body else None
    environ["wsgi.input"] = io.BytesIO(body if at is None else flip(body, at))
    return at is not None


def find_in_chunks(body: bytes, at_byte: int) -> int | None:
    """Returns the position in an aws-chunked body of a byte of the content, or of its last byte if it is shorter. Pure.

    Returns None for empty content.
    """
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
    """Returns S3's refusal of an upload whose content does not match its checksum. Pure.

    Returns None if the client did not send a checksum.
    """
    announced = {name for name in environ if name.startswith("HTTP_X_AMZ_CHECKSUM_")}
    announced -= {"HTTP_X_AMZ_CHECKSUM_ALGORITHM", "HTTP_X_AMZ_CHECKSUM_MODE", "HTTP_X_AMZ_CHECKSUM_TYPE"}
    if announced or "HTTP_CONTENT_MD5" in environ or environ.get("HTTP_X_AMZ_TRAILER", "").startswith("x-amz-checksum"):
        return Refusal(code="BadDigest", message="The digest you specified did not match the calculated checksum.")
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if _HEX_SHA256.fullmatch(signed):
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        return Refusal(code="XAmzContentSHA256Mismatch", message=message)
    if signed.startswith("STREAMING-AWS4-"):  # the signature of a chunk covers its content
        message = "The request signature we calculated does not match."
        return Refusal(status="403 Forbidden", code="SignatureDoesNotMatch", message=message)
    return None


class CutError(ConnectionAbortedError):
    """The connection must be closed at this point, as if the network had failed."""


class ApiFaults:
    """WSGI middleware below ApiLog, which describes each call.

    name_caller: returns the ARN of an access key's owner.
    """

    def __init__(self, app: WSGIApplication, book: FaultBook, name_caller: Callable[[str | None], str]) -> None:
        self._app = app
        self._book = book
        self._name_caller = name_caller

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forwards the call unless a fault strikes it. Raises CutError to close the connection."""
        call = environ[CALL_KEY]
        service, action = call["service"] or "", call["action"]
        if slow := self._book.take("slow", service=service, action=action):
            environ[FAULT_KEY] = slow.text
            time.sleep(float(slow.parameters["ms"]) / 1000)
        fault = self._find_fault(
            KINDS_OF_S3 if service == "s3" else KINDS_OF_OTHERS,
            service=service, action=action, operation=action, key=(call["resource"] or "").partition("/")[2],
        )  # fmt: skip
        if fault is None:
            return self._app(environ, start_response)
        environ[FAULT_KEY] = fault.text
        match fault.kind:
            case "unauthorized":
                caller = self._name_caller(environ[ACCESS_KEY])
                return refuse(environ, start_response, service, deny(service, caller, f"{service}:{action}"))
            case "lost-reply":
                for _ in self._app(environ, start_response):
                    pass
                raise CutError("a fault drops the reply")
            case "s3-cut":
                return self._cut(environ, start_response, fault)
            case "s3-flip":
                return self._flip(environ, start_response, fault)
        return refuse(environ, start_response, service, REFUSALS[fault.kind])

    def _find_fault(self, kinds: Iterable[str], **context: str) -> Fault | None:
        return next((fault for kind in kinds if (fault := self._book.take(kind, **context))), None)

    def _flip(self, environ: WSGIEnvironment, start_response: StartResponse, fault: Fault) -> Iterable[bytes]:
        at_byte = int(fault.parameters.get("at_byte", "0"))
        if environ["REQUEST_METHOD"] not in ("PUT", "POST"):
            return [flip(b"".join(self._app(environ, start_response)), at_byte)]
        if flip_upload(environ, at_byte) and (refusal := find_refusal(environ)):
            return refuse(environ, start_response, "s3", refusal)
        return self._app(environ, start_response)

    def _cut(self, environ: WSGIEnvironment, start_response: StartResponse, fault: Fault) -> Iterable[bytes]:
        after_bytes = int(fault.parameters.get("after_bytes", "0"))
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            left = after_bytes
            while left and (data := environ["wsgi.input"].read(min(left, CHUNK_BYTES))):
                left -= len(data)
            raise CutError("a fault cuts the upload")
        return _cut_short(list(self._app(environ, start_response)), after_bytes)


def _cut_short(body: list[bytes], after_bytes: int) -> Iterator[bytes]:
    """Yields at most `after_bytes` of the body, and never its last byte. Raises CutError at the end."""
    left = min(after_bytes, max(0, sum(map(len, body)) - 1))
    yield b""  # so that the headers are always sent
    for data in body:
        yield data[:left]
        left -= len(data[:left])
    raise CutError("a fault cuts the download")
