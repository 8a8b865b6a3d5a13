"""Error responses that moto lacks. Each of AWS's protocols has its own form, and often its own code.

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
    """An error response. `code` is EC2's code; `query_code`, `json_code` and `s3_code` replace it in other protocols.

    json_status: the status in the JSON protocol, which is 400 for every error except those of the service itself.
    """

    code: str
    message: str
    status: str = "400 Bad Request"
    query_code: str = ""
    json_code: str = ""
    s3_code: str = ""
    json_status: str = "400 Bad Request"


FORBIDDEN = "403 Forbidden"
INTERNAL = "500 Internal Server Error"
UNKNOWN_KEY = Refusal(
    status=FORBIDDEN, code="AuthFailure", query_code="InvalidClientTokenId", json_code="UnrecognizedClientException",
    s3_code="InvalidAccessKeyId",
    message="This sandbox does not have this access key; ec2-sandbox env prints the right one.",
)  # fmt: skip
NO_KEY = Refusal(
    status=FORBIDDEN, code="AuthFailure", query_code="MissingAuthenticationToken",
    json_code="MissingAuthenticationTokenException", s3_code="AccessDenied",
    message="The call is not signed; the sandbox answers only calls that are signed with one of its access keys.",
)  # fmt: skip
NOT_FOR_IAM = Refusal(
    status=FORBIDDEN, code="InvalidClientTokenId", message="The security token included in the request is invalid"
)
EXPIRED = Refusal(
    status=FORBIDDEN, code="RequestExpired", query_code="ExpiredToken", json_code="ExpiredTokenException",
    s3_code="ExpiredToken", message="The security token included in the request is expired",
)  # fmt: skip
BAD_SIGNATURE = Refusal(
    status=FORBIDDEN, code="AuthFailure", query_code="SignatureDoesNotMatch", json_code="InvalidSignatureException",
    s3_code="SignatureDoesNotMatch",
    message="The request signature we calculated does not match the signature you provided. Check your key and signing "
    "method.",
)  # fmt: skip
NOT_SIGNED = Refusal(
    status=FORBIDDEN, code="AuthFailure", query_code="SignatureDoesNotMatch", json_code="InvalidSignatureException",
    s3_code="AccessDenied", message="There were headers present in the request which were not signed",
)  # fmt: skip
OLD_SIGNATURE = Refusal(
    code="AuthFailure", query_code="IncompleteSignature", json_code="IncompleteSignatureException",
    s3_code="InvalidRequest",
    message="The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
)  # fmt: skip
BAD_TOKEN = Refusal(
    status=FORBIDDEN, code="AuthFailure", query_code="InvalidClientTokenId", json_code="UnrecognizedClientException",
    s3_code="InvalidToken", message="The security token included in the request is invalid",
)  # fmt: skip
SKEWED = Refusal(
    status=FORBIDDEN, code="RequestExpired", query_code="SignatureDoesNotMatch", json_code="InvalidSignatureException",
    s3_code="RequestTimeTooSkewed",
    message="The difference between the request time and the current time is too large.",
)  # fmt: skip
EXPIRED_URL = Refusal(
    status=FORBIDDEN, code="RequestExpired", query_code="SignatureDoesNotMatch", s3_code="AccessDenied",
    message="Request has expired",
)  # fmt: skip
BAD_EXPIRES = Refusal(
    code="AuthFailure", query_code="IncompleteSignature", s3_code="AuthorizationQueryParametersError",
    message="X-Amz-Expires must be a number of seconds, at most a week (604800)",
)  # fmt: skip
THROTTLED = Refusal(
    status="503 Service Unavailable", code="RequestLimitExceeded", query_code="Throttling",
    json_code="ThrottlingException", message="Request limit exceeded.",
)  # fmt: skip
SLOW_DOWN = Refusal(status="503 Slow Down", code="SlowDown", message="Please reduce your request rate.")
BROKEN = Refusal(
    status=INTERNAL, json_status=INTERNAL, code="InternalError", query_code="InternalFailure",
    json_code="InternalServerError", message="An internal error has occurred",
)  # fmt: skip
# The status is 400, because clients would retry 500 or more.
UNSUPPORTED = Refusal(code="UnsupportedOperation", s3_code="NotImplemented", message="The sandbox cannot do this")
SANDBOX_BROKEN = Refusal(
    status=INTERNAL, json_status=INTERNAL, code="InternalError", query_code="InternalFailure",
    json_code="InternalFailure", message="The sandbox failed; see its daemon.log",
)  # fmt: skip


class RefusedError(Exception):
    """A call is refused. `refusal` is the response."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def forbid(message: str) -> Refusal:
    """Returns the response to a caller who is not authorized. Pure."""
    return Refusal(
        status=FORBIDDEN, code="UnauthorizedOperation", query_code="AccessDenied", json_code="AccessDeniedException",
        s3_code="AccessDenied", message=message,
    )  # fmt: skip


def deny(service: str | None, caller: str, action: str, resource: str = "*", *, explicit: bool = False) -> Refusal:
    """Returns the response to a caller who lacks a permission, with AWS's message. Pure.

    caller: an ARN. action: `service:Action`. explicit: whether a policy denies the action; otherwise, no policy allows
    it.
    """
    on = "" if resource == "*" else f" on resource: {resource}"
    why = (
        "with an explicit deny in an identity-based policy"
        if explicit
        else f"because no identity-based policy allows the {action} action"
    )
    message = f"User: {caller} is not authorized to perform: {action}{on} {why}"
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
    """Sends an error response in the protocol of the call, and returns its body."""
    ending = f"<RequestId>{uuid.uuid4()}</RequestId>"
    message = f"<Message>{escape(refusal.message, quote=False)}</Message>"
    status, kind = refusal.status, "text/xml"
    if "HTTP_X_AMZ_TARGET" in environ:
        status, kind = refusal.json_status, "application/x-amz-json-1.1"
        text = json.dumps({"__type": refusal.json_code or refusal.code, "message": refusal.message})
    elif service == "s3":
        kind = "application/xml"
        text = f"<Error><Code>{refusal.s3_code or refusal.code}</Code>{message}{ending}</Error>"
    elif service == "ec2":
        text = f"<Response><Errors><Error><Code>{refusal.code}</Code>{message}</Error></Errors>{ending}</Response>"
    else:
        code = refusal.query_code or refusal.code
        text = f"<ErrorResponse><Error><Code>{code}</Code>{message}</Error>{ending}</ErrorResponse>"
    body = (text if kind.endswith("json-1.1") else f'<?xml version="1.0" encoding="UTF-8"?>{text}').encode()
    # Clients of JSON protocols without a target read the code from this header.
    names = [("x-amzn-ErrorType", refusal.json_code or refusal.code)] if service != "s3" else []
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *names])
    return [body]
