"""Faults between the client and the API: refused, broken and lost calls, S3's bytes cut short or changed."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from sandbox.api_log import CALL_KEY, FAULT_KEY
from sandbox.faults import Fault, FaultBook
from sandbox.flips import find_refusal, flip, flip_upload
from sandbox.refusals import Refusal, deny, refuse, render_xml, send

CHUNK_BYTES = 64 * 1024


class CutError(ConnectionAbortedError):
    """The connection is to end here, as if the network had failed."""


# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
THROTTLED = Refusal(
    status="503 Service Unavailable",
    code="RequestLimitExceeded",
    query_code="Throttling",
    json_code="ThrottlingException",
    s3_code="SlowDown",
    message="Request limit exceeded.",
)
BROKEN = Refusal(
    status="500 Internal Server Error",
    code="InternalError",
    query_code="InternalFailure",
    json_code="InternalServerError",
    s3_code="InternalError",
    message="An internal error has occurred",
    json_status="500 Internal Server Error",
)
SLOW_DOWN = "Please reduce your request rate."


class ApiFaults:
    """WSGI middleware below ApiLog, which has found out what each call is.

    name_caller: the ARN of whoever has an access key.
    """

    def __init__(self, app: WSGIApplication, book: FaultBook, name_caller: Callable[[str | None], str]) -> None:
        self._app = app
        self._book = book
        self._name_caller = name_caller

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Passes the call on, or does to it what a fault says. Raises CutError where the connection is to end."""
        call = environ[CALL_KEY]
        if call["service"] == "s3":
            return self._answer_s3(environ, start_response, call)
        context = {"service": call["service"] or "", "action": call["action"]}
        for kind in ("throttle", "unauthorized", "internal-error"):
            if fault := self._book.take(kind, **context):
                environ[FAULT_KEY] = fault.text
                return refuse(environ, start_response, call["service"], self._choose_refusal(kind, call))
        if fault := self._book.take("lost-reply", **context):
            environ[FAULT_KEY] = fault.text
            for _ in self._app(environ, start_response):
                pass
            raise CutError("the reply is lost on purpose")
        return self._app(environ, start_response)

    def _choose_refusal(self, kind: str, call: dict[str, Any]) -> Refusal:
        if kind == "unauthorized":
            action = f"{call['service']}:{call['action']}"
            return deny(call["service"], self._name_caller(call["access_key_id"]), action)
        return THROTTLED if kind == "throttle" else BROKEN

    def _answer_s3(
        self, environ: WSGIEnvironment, start_response: StartResponse, call: dict[str, Any]
    ) -> Iterable[bytes]:
        context = {"operation": call["action"], "key": call["resource"].partition("/")[2]}
        if fault := self._book.take("s3-503", **context):
            environ[FAULT_KEY] = fault.text
            body = render_xml("Error", "SlowDown", SLOW_DOWN)
            return send(start_response, "503 Slow Down", "application/xml", body)
        if fault := self._book.take("s3-cut", **context):
            environ[FAULT_KEY] = fault.text
            return self._cut(environ, start_response, fault)
        if fault := self._book.take("s3-flip", **context):
            environ[FAULT_KEY] = fault.text
            return self._flip(environ, start_response, fault)
        return self._app(environ, start_response)

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
            raise CutError("the upload is cut on purpose")
        return _cut_short(list(self._app(environ, start_response)), after_bytes)


def _cut_short(body: list[bytes], after_bytes: int) -> Iterator[bytes]:
    """Always ends before its end: at most all but the last byte goes out."""
    left = min(after_bytes, max(0, sum(map(len, body)) - 1))
    # Even where no byte of the body goes out, its headers do.
    yield b""
    for data in body:
        yield data[:left]
        left -= len(data[:left])
    raise CutError("the download is cut on purpose")
