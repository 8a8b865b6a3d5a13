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

OF_XML = ("s3", "s3-control", "route53", "cloudfront", None)  # the services whose calls have paths and XML
FORBIDDEN = "403 Forbidden"
INTERNAL = "500 Internal Server Error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error. `code` is EC2's code; `query_code`, `json_code` and `s3_code` replace it in other protocols."""

    code: str
    message: str
    status: str = "400 Bad Request"
    query_code: str = ""
    json_code: str = ""
    s3_code: str = ""


# By position: EC2's code, the message, the status, and the codes in the query, JSON and S3 protocols.
UNKNOWN_KEY = Refusal(
    "AuthFailure", "This sandbox does not have this access key; ec2-sandbox env prints the right one.",
    FORBIDDEN, "InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId",
)  # fmt: skip
NO_KEY = Refusal(
    "AuthFailure", "The call is not signed; the sandbox answers only calls that are signed with one of its keys.",
    FORBIDDEN, "MissingAuthenticationToken", "MissingAuthenticationTokenException", "AccessDenied",
)  # fmt: skip
EXPIRED = Refusal(
    "RequestExpired", "The security token included in the request is expired",
    FORBIDDEN, "ExpiredToken", "ExpiredTokenException", "ExpiredToken",
)  # fmt: skip
BAD_SIGNATURE = Refusal(
    "AuthFailure", "The request signature we calculated does not match the signature you provided. Check your key and "
    "signing method.", FORBIDDEN, "SignatureDoesNotMatch", "InvalidSignatureException", "SignatureDoesNotMatch",
)  # fmt: skip
NOT_SIGNED = Refusal(
    "AuthFailure", "There were headers present in the request which were not signed",
    FORBIDDEN, "SignatureDoesNotMatch", "InvalidSignatureException", "AccessDenied",
)  # fmt: skip
OLD_SIGNATURE = Refusal(
    "AuthFailure", "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    query_code="IncompleteSignature", json_code="IncompleteSignatureException", s3_code="InvalidRequest",
)  # fmt: skip
BAD_TOKEN = Refusal(
    "AuthFailure", "The security token included in the request is invalid",
    FORBIDDEN, "InvalidClientTokenId", "UnrecognizedClientException", "InvalidToken",
)  # fmt: skip
SKEWED = Refusal(
    "RequestExpired", "The difference between the request time and the current time is too large.",
    FORBIDDEN, "SignatureDoesNotMatch", "InvalidSignatureException", "RequestTimeTooSkewed",
)  # fmt: skip
EXPIRED_URL = Refusal(
    "RequestExpired", "Request has expired", FORBIDDEN, "SignatureDoesNotMatch", s3_code="AccessDenied"
)
THROTTLED = Refusal(
    "RequestLimitExceeded", "Request limit exceeded.", "503 Service Unavailable", "Throttling", "ThrottlingException"
)
SLOW_DOWN = Refusal("SlowDown", "Please reduce your request rate.", "503 Slow Down")
BROKEN = Refusal("InternalError", "An internal error has occurred", INTERNAL, "InternalFailure", "InternalServerError")
# The status is 400, because clients would retry 500 or more.
UNSUPPORTED = Refusal("UnsupportedOperation", "The sandbox cannot do this", s3_code="NotImplemented")
SANDBOX_BROKEN = Refusal(
    "InternalError", "The sandbox failed; see its daemon.log", INTERNAL, "InternalFailure", "InternalFailure"
)


class RefusedError(Exception):
    """A call is refused. `refusal` is the response."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def deny(service: str | None, caller: str, action: str) -> Refusal:
    """Returns the response to a caller who lacks a permission, with AWS's message. Pure.

    caller: an ARN. action: `service:Action`.
    """
    message = (
        f"User: {caller} is not authorized to perform: {action} "
        f"because no identity-based policy allows the {action} action"
    )
    if service == "ec2":
        encoded = base64.urlsafe_b64encode(json.dumps({"allowed": False, "context": {"action": action}}).encode())
        message = (
            f"You are not authorized to perform this operation. {message}. "
            f"Encoded authorization failure message: {encoded.decode()}"
        )
    return Refusal("UnauthorizedOperation", message, FORBIDDEN, "AccessDenied", "AccessDeniedException", "AccessDenied")


def refuse(
    environ: WSGIEnvironment, start_response: StartResponse, service: str | None, refusal: Refusal
) -> Iterable[bytes]:
    """Sends an error response in the protocol of the call, and returns its body."""
    ending = f"<RequestId>{uuid.uuid4()}</RequestId>"
    message = f"<Message>{escape(refusal.message, quote=False)}</Message>"
    status, kind = refusal.status, "text/xml"
    # Calls in forms have no path.
    if "HTTP_X_AMZ_TARGET" in environ or (service not in OF_XML and environ["PATH_INFO"] != "/"):
        status, kind = status if status == INTERNAL else "400 Bad Request", "application/x-amz-json-1.1"
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
