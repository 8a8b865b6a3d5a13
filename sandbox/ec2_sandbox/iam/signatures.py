"""Signature Version 4: verifies that a call was recently signed with the secret of its access key.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import datetime as dt
import hashlib
import hmac
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote_to_bytes
from wsgiref.types import WSGIEnvironment

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ec2_sandbox.api import refusals
from ec2_sandbox.api.refusals import RefusedError

ALGORITHM = "AWS4-HMAC-SHA256"
HEADER = re.compile(rf"{ALGORITHM} +Credential=([^,]+), *SignedHeaders=([^,]+), *Signature=([0-9a-f]+)$")
TIME = "%Y%m%dT%H%M%SZ"
MAX_SKEW = dt.timedelta(minutes=15)
MAX_EXPIRES_S = 7 * 24 * 3600
EMPTY = hashlib.sha256().hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """The parts of a call's signature. `expires_s`: for a presigned URL; None for a signature in the headers."""

    access_key_id: str
    scope: str
    signed_headers: tuple[str, ...]
    signature: str
    time: str
    token: str | None
    expires_s: int | None = None


def read_signature(environ: WSGIEnvironment) -> Signature:
    """Returns the signature in a call's headers or URL.

    Raises RefusedError for a missing signature, and for other signature versions.
    """
    header, query = environ.get("HTTP_AUTHORIZATION", ""), parse_qs(environ.get("QUERY_STRING", ""))
    parameters = {name: values[0] for name, values in query.items()}
    if header:
        found = HEADER.match(header)
        if found is None:
            raise RefusedError(refusals.OLD_SIGNATURE)
        credential, headers, signature = found.groups()
        time, token, expires_s = environ.get("HTTP_X_AMZ_DATE", ""), environ.get("HTTP_X_AMZ_SECURITY_TOKEN"), None
    elif parameters.get("X-Amz-Algorithm") == ALGORITHM:
        credential, headers = parameters.get("X-Amz-Credential", ""), parameters.get("X-Amz-SignedHeaders", "")
        signature, time = parameters.get("X-Amz-Signature", ""), parameters.get("X-Amz-Date", "")
        token, expires_s = parameters.get("X-Amz-Security-Token"), _read_expires(parameters.get("X-Amz-Expires", ""))
    else:
        raise RefusedError(
            refusals.OLD_SIGNATURE if parameters.keys() & {"Signature", "X-Amz-Algorithm"} else refusals.NO_KEY
        )
    key, _, scope = credential.partition("/")
    return Signature(
        access_key_id=key, scope=scope, signed_headers=tuple(headers.split(";")), signature=signature, time=time,
        token=token, expires_s=expires_s,
    )  # fmt: skip


def _read_expires(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or int(text) > MAX_EXPIRES_S:
        raise RefusedError(refusals.BAD_EXPIRES)
    return int(text)


def check_signature(
    environ: WSGIEnvironment, found: Signature, secret: str, token: str | None, now: dt.datetime
) -> None:
    """Raises RefusedError unless the call was signed with `secret`, recently, and with all required headers.

    token: the session's token for temporary keys, or None. now: UTC. Restores a body after reading it.
    """
    date, region, service, ending = (*found.scope.split("/"), "", "", "")[:4]
    if found.token != token:
        raise RefusedError(refusals.BAD_TOKEN)
    if ending != "aws4_request" or not found.time.startswith(date) or not date:
        raise RefusedError(refusals.BAD_SIGNATURE)
    _check_time(found, now)
    present = {name for name in environ if name.startswith("HTTP_X_AMZ_")}
    names = {f"HTTP_{name.upper().replace('-', '_')}" for name in found.signed_headers}
    if "host" not in found.signed_headers or (service == "s3" and not present <= names):
        raise RefusedError(refusals.NOT_SIGNED)
    request = AWSRequest(method=environ["REQUEST_METHOD"])
    request.context["timestamp"] = found.time
    signer = SigV4Auth(Credentials("", secret), service, region)
    digest = hashlib.sha256(describe_request(environ, found, service)).hexdigest()
    expected = signer.signature(f"{ALGORITHM}\n{found.time}\n{found.scope}\n{digest}", request)
    if not hmac.compare_digest(expected, found.signature):
        raise RefusedError(refusals.BAD_SIGNATURE)


def _check_time(found: Signature, now: dt.datetime) -> None:
    try:
        signed = dt.datetime.strptime(found.time, TIME).replace(tzinfo=dt.UTC)
    except ValueError:
        raise RefusedError(refusals.BAD_SIGNATURE) from None
    if found.expires_s is not None and now > signed + dt.timedelta(seconds=found.expires_s):
        raise RefusedError(refusals.EXPIRED_URL)
    if signed - now > MAX_SKEW or (found.expires_s is None and now - signed > MAX_SKEW):
        raise RefusedError(refusals.SKEWED)


def describe_request(environ: WSGIEnvironment, found: Signature, service: str) -> bytes:
    """Returns the canonical request, which does not depend on how a client escapes characters."""
    path, _, query = str(environ.get("REQUEST_URI") or environ["PATH_INFO"]).partition("?")
    path = quote(unquote_to_bytes(path), safe="/~")
    lines = [
        environ["REQUEST_METHOD"],
        path if service == "s3" else quote(path, safe="/~"),
        _describe_query(query),
        *(f"{name}:{' '.join(_read_header(environ, name).split())}" for name in found.signed_headers),
        "",
        ";".join(found.signed_headers),
        _describe_body(environ, found, service),
    ]
    return "\n".join(lines).encode("latin-1")  # as WSGI decodes headers


def _describe_query(query: str) -> str:
    pairs: Sequence[tuple[str, str]] = sorted(
        (_escape(name), _escape(value)) for name, _, value in (word.partition("=") for word in query.split("&") if word)
    )
    return "&".join(f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature")


def _escape(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ")), safe="-_.~")


def _read_header(environ: Mapping[str, object], name: str) -> str:
    known = name.upper().replace("-", "_")
    return str(environ.get(known if known in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{known}", ""))


def _describe_body(environ: WSGIEnvironment, found: Signature, service: str) -> str:
    if service == "s3":
        return str(environ.get("HTTP_X_AMZ_CONTENT_SHA256") or (UNSIGNED if found.expires_s is not None else EMPTY))
    return hashlib.sha256(read_body(environ)).hexdigest()


def read_body(environ: WSGIEnvironment) -> bytes:
    """Returns a request's body, and restores it for the next reader."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body
