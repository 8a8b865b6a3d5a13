"""Faults between the client and the API: refused calls, lost replies, and truncated S3 content."""

import time
from collections.abc import Callable, Iterable, Iterator
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ec2_sandbox.api.log import ACCESS_KEY, CALL_KEY, FAULT_KEY
from ec2_sandbox.api.refusals import BROKEN, SLOW_DOWN, THROTTLED, deny, refuse
from ec2_sandbox.faults import Fault, FaultBook

CHUNK_BYTES = 64 * 1024
KINDS_OF_S3 = ("s3-503", "unauthorized", "s3-cut")
KINDS_OF_OTHERS = ("throttle", "unauthorized", "internal-error", "lost-reply")
REFUSALS = {"s3-503": SLOW_DOWN, "throttle": THROTTLED, "internal-error": BROKEN}


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
        return refuse(environ, start_response, service, REFUSALS[fault.kind])

    def _find_fault(self, kinds: Iterable[str], **context: str) -> Fault | None:
        return next((fault for kind in kinds if (fault := self._book.take(kind, **context))), None)

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
