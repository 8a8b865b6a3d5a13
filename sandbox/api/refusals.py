"""Error answers of the API as a whole: each of AWS's protocols has a form and often a code of its own.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_access-denied.html
"""

import base64
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from wsgiref.types import StartResponse, WSGIEnvironment


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An error answer. `code` is EC2's; the services of the other protocols say the same in other words.

    json_status: the status of the JSON protocol, whose errors are 400 whoever is to blame unless it is the service.
    """

    status: str
    code: str
    query_code: str
    json_code: str
    s3_code: str
    message: str
    json_status: str = "400 Bad Request"


class RefusedError(Exception):
    """A call is not to be carried out; `refusal` is the answer to it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def render_denial(caller: str, action: str, resource: str = "*", *, explicit: bool = False) -> str:
    """AWS's words for a missing permission. Pure.

    caller: an ARN; action: `service:Action`; explicit: whether a policy forbids it, instead of none allowing it.
    """
    on = "" if resource == "*" else f" on resource: {resource}"
    why = (
        "with an explicit deny in an identity-based policy"
        if explicit
        else f"because no identity-based policy allows the {action} action"
    )
    return f"User: {caller} is not authorized to perform: {action}{on} {why}"


def forbid(message: str) -> Refusal:
    """The answer to a caller who may not do this, whatever the reason. Pure."""
    return Refusal(
        status="403 Forbidden",
        code="UnauthorizedOperation",
        query_code="AccessDenied",
        json_code="AccessDeniedException",
        s3_code="AccessDenied",
        message=message,
    )


def deny(service: str | None, caller: str, action: str, resource: str = "*", *, explicit: bool = False) -> Refusal:
    """The answer to a caller who lacks a permission. Pure; the arguments are those of `render_denial`."""
    message = render_denial(caller, action, resource, explicit=explicit)
    if service == "ec2":
        seen = {"allowed": False, "explicitDeny": explicit, "context": {"action": action, "resource": resource}}
        encoded = base64.urlsafe_b64encode(json.dumps(seen).encode()).decode()
        message = (
            f"You are not authorized to perform this operation. {message}. "
            f"Encoded authorization failure message: {encoded}"
        )
    return forbid(message)


def refuse(
    environ: WSGIEnvironment, start_response: StartResponse, service: str | None, refusal: Refusal
) -> Iterable[bytes]:
    """Answers a call with an error, in the protocol that it came in."""
    if "HTTP_X_AMZ_TARGET" in environ:
        body = json.dumps({"__type": refusal.json_code, "message": refusal.message}).encode()
        return send(start_response, refusal.json_status, "application/x-amz-json-1.1", body)
    if service == "ec2":
        body = render_xml("Response/Errors", refusal.code, refusal.message)
    elif service == "s3":
        return send(
            start_response, refusal.status, "application/xml", render_xml("Error", refusal.s3_code, refusal.message)
        )
    else:
        body = render_xml("ErrorResponse", refusal.query_code, refusal.message)
    return send(start_response, refusal.status, "text/xml", body)


def render_xml(shape: str, code: str, message: str) -> bytes:
    """An error as the service's protocol has it: S3's `Error` is the document itself. Pure but for the request's id."""
    ending = f"<RequestId>{uuid.uuid4()}</RequestId>"
    inner = f"<Code>{code}</Code><Message>{escape(message, quote=False)}</Message>"
    document = {
        "Error": f"<Error>{inner}{ending}</Error>",
        "Response/Errors": f"<Response><Errors><Error>{inner}</Error></Errors>{ending}</Response>",
        "ErrorResponse": f"<ErrorResponse><Error>{inner}</Error>{ending}</ErrorResponse>",
    }[shape]
    return f'<?xml version="1.0" encoding="UTF-8"?>{document}'.encode()


def send(start_response: StartResponse, status: str, content_type: str, body: bytes) -> Iterable[bytes]:
    """A whole answer."""
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]
