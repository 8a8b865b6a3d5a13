"""Faults between the client and the API: refused, broken and lost calls, and S3 connections that end too early."""

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from sandbox.api_log import CALL_KEY, FAULT_KEY
from sandbox.faults import Fault, FaultBook

CHUNK_BYTES = 64 * 1024


class CutError(ConnectionAbortedError):
    """The connection is to end here, as if the network had failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An error answer. `code` is EC2's; other services say the same in other words."""

    status: str
    code: str
    query_code: str
    json_code: str
    message: str


# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
REFUSALS = {
    "throttle": Refusal(status="503 Service Unavailable", code="RequestLimitExceeded", query_code="Throttling",
                        json_code="ThrottlingException", message="Request limit exceeded."),
    "unauthorized": Refusal(status="403 Forbidden", code="UnauthorizedOperation", query_code="AccessDenied",
                            json_code="AccessDeniedException",
                            message="You are not authorized to perform this operation."),
    "internal-error": Refusal(status="500 Internal Server Error", code="InternalError", query_code="InternalFailure",
                              json_code="InternalServerError", message="An internal error has occurred"),
}  # fmt: skip
SLOW_DOWN = "Please reduce your request rate."


class ApiFaults:
    """WSGI middleware below ApiLog, which has found out what each call is."""

    def __init__(self, app: WSGIApplication, book: FaultBook) -> None:
        self._app = app
        self._book = book

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Passes the call on, or does to it what a fault says. Raises CutError where the connection is to end."""
        call = environ[CALL_KEY]
        if call["service"] == "s3":
            return self._answer_s3(environ, start_response, call)
        context = {"service": call["service"] or "", "action": call["action"]}
        for kind, refusal in REFUSALS.items():
            if fault := self._book.take(kind, **context):
                environ[FAULT_KEY] = fault.text
                return _refuse(environ, start_response, call["service"], refusal)
        if fault := self._book.take("lost-reply", **context):
            environ[FAULT_KEY] = fault.text
            for _ in self._app(environ, start_response):
                pass
            raise CutError("the reply is lost on purpose")
        return self._app(environ, start_response)

    def _answer_s3(
        self, environ: WSGIEnvironment, start_response: StartResponse, call: dict[str, Any]
    ) -> Iterable[bytes]:
        context = {"operation": call["action"], "key": call["resource"].partition("/")[2]}
        if fault := self._book.take("s3-503", **context):
            environ[FAULT_KEY] = fault.text
            body = _xml("Error", "SlowDown", SLOW_DOWN)
            return _send(start_response, "503 Slow Down", "application/xml", body)
        if fault := self._book.take("s3-cut", **context):
            environ[FAULT_KEY] = fault.text
            return self._cut(environ, start_response, fault)
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


def _refuse(
    environ: WSGIEnvironment, start_response: StartResponse, service: str | None, refusal: Refusal
) -> Iterable[bytes]:
    if "HTTP_X_AMZ_TARGET" in environ:
        body = json.dumps({"__type": refusal.json_code, "message": refusal.message}).encode()
        status = (
            refusal.status if refusal.status.startswith("5") and "Unavail" not in refusal.status else "400 Bad Request"
        )
        return _send(start_response, status, "application/x-amz-json-1.1", body)
    if service == "ec2":
        return _send(start_response, refusal.status, "text/xml", _xml("Response/Errors", refusal.code, refusal.message))
    return _send(start_response, refusal.status, "text/xml", _xml("ErrorResponse", refusal.query_code, refusal.message))


def _xml(shape: str, code: str, message: str) -> bytes:
    """An error as the service's protocol has it: S3's `Error` is the document itself."""
    ending = f"<RequestId>{uuid.uuid4()}</RequestId>"
    inner = f"<Code>{code}</Code><Message>{message}</Message>"
    document = {
        "Error": f"<Error>{inner}{ending}</Error>",
        "Response/Errors": f"<Response><Errors><Error>{inner}</Error></Errors>{ending}</Response>",
        "ErrorResponse": f"<ErrorResponse><Error>{inner}</Error>{ending}</ErrorResponse>",
    }[shape]
    return f'<?xml version="1.0" encoding="UTF-8"?>{document}'.encode()


def _send(start_response: StartResponse, status: str, content_type: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]
