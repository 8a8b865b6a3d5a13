"""Signature Version 4: verifies that a call was recently signed with the secret of its access key.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import datetime as dt
import hmac
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote_to_bytes
from wsgiref.types import WSGIEnvironment

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ec2_sandbox.api import refusals
from ec2_sandbox.api.refusals import RefusedError

ALGORITHM = "AWS4-HMAC-SHA256"
HEADER = re.compile(rf"{ALGORITHM} +Credential=([^,]+), *SignedHeaders=([^,]+), *Signature=([0-9a-f]+)$")
TIME = "%Y%m%dT%H%M%SZ"
MAX_SKEW = dt.timedelta(minutes=15)
SCOPE = re.compile(r"(\d{8})/[^/]+/([^/]+)/aws4_request")  # the day, the region and the service


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
        token, expires = parameters.get("X-Amz-Security-Token"), parameters.get("X-Amz-Expires", "")
        expires_s = int(expires) if re.fullmatch(r"\d{1,6}", expires) else 0
    else:
        raise RefusedError(
            refusals.OLD_SIGNATURE if parameters.keys() & {"Signature", "X-Amz-Algorithm"} else refusals.NO_KEY
        )
    key, _, scope = credential.partition("/")
    return Signature(
        access_key_id=key, scope=scope, signed_headers=tuple(headers.split(";")), signature=signature, time=time,
        token=token, expires_s=expires_s,
    )  # fmt: skip


def check_signature(
    environ: WSGIEnvironment, found: Signature, secret: str, token: str | None, now: dt.datetime
) -> None:
    """Raises RefusedError unless the call was signed with `secret`, recently, and with all required headers.

    token: the session's token for temporary keys, or None. now: UTC. Restores a body after reading it.
    """
    if found.token != token:
        raise RefusedError(refusals.BAD_TOKEN)
    scope = SCOPE.fullmatch(found.scope)
    if scope is None or not found.time.startswith(scope[1]):
        raise RefusedError(refusals.BAD_SIGNATURE)
    _check_time(found, now)
    present = {name for name in environ if name.startswith("HTTP_X_AMZ_")}
    names = {f"HTTP_{name.upper().replace('-', '_')}" for name in found.signed_headers}
    if "host" not in found.signed_headers or (scope[2] == "s3" and not present <= names):
        raise RefusedError(refusals.NOT_SIGNED)
    if not hmac.compare_digest(calculate_signature(environ, found, secret), found.signature):
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


def calculate_signature(environ: WSGIEnvironment, found: Signature, secret: str) -> str:
    """Returns the signature that botocore makes of a call, which does not depend on how a client escapes characters."""
    _, region, service, _ = found.scope.split("/")
    path, _, query = str(environ.get("REQUEST_URI") or environ["PATH_INFO"]).partition("?")
    parameters: Any = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "X-Amz-Signature"]
    request = AWSRequest(
        method=environ["REQUEST_METHOD"],
        url=f"https://{environ['HTTP_HOST']}{quote(unquote_to_bytes(path), safe='/~')}",
        headers={name: _read_header(environ, name) for name in found.signed_headers},
        params=parameters,
        data=b"" if service == "s3" else read_body(environ),  # S3's header has the digest of the body
    )
    request.context["timestamp"] = found.time
    kinds = (S3SigV4Auth, S3SigV4QueryAuth) if service == "s3" else (SigV4Auth, SigV4Auth)
    signer: Any = kinds[found.expires_s is not None](Credentials("", secret), service, region)
    signer.headers_to_sign = lambda signed: signed.headers  # also those that botocore itself would leave out
    return str(signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request))


def _read_header(environ: Mapping[str, object], name: str) -> str:
    known = name.upper().replace("-", "_")
    value = str(environ.get(known if known in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{known}", ""))
    return value.encode("latin-1").decode(errors="replace")  # WSGI decodes headers as Latin-1


def read_body(environ: WSGIEnvironment) -> bytes:
    """Returns a request's body, and restores it for the next reader."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body
