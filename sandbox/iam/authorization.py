"""Checks a call's signature and its caller's policies before the call takes effect."""

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from sandbox.api import ec2
from sandbox.api.log import CALL_KEY, CALLER_KEY, REFUSED_KEY
from sandbox.api.refusals import Refusal, RefusedError, deny, forbid, refuse
from sandbox.iam.permissions import Call, Ec2Asks, describe_asks, read_tree, s3_arn
from sandbox.iam.policies import Ask, PolicyError
from sandbox.iam.principals import Principal, Trust, check_session, find_principal, find_secret, find_trust, name_caller
from sandbox.iam.signatures import check_signature, read_signature

# Services with an endpoint in each region. The others are global, or accept any region.
REGIONAL = ("ec2", "ssm", "servicequotas")
# AWS allows these for all callers, regardless of policies.
ALWAYS_ALLOWED = (("sts", "GetCallerIdentity"), ("sts", "GetSessionToken"))
ASSUME_ROLE = ("sts", "AssumeRole")
# These answer 403 instead of 404 to callers who may not list the bucket.
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
TELLS_OF_ABSENCE = ("GetObject", "HeadObject")


class Authorization:
    """WSGI middleware below ApiLog, which describes each call. regions: the sandbox's regions."""

    def __init__(self, app: WSGIApplication, regions: Iterable[str]) -> None:
        self._app = app
        self._regions = tuple(regions)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forwards the call, or refuses it with AWS's error."""
        known = environ[CALL_KEY]
        service, action = known["service"], known["action"]
        try:
            principal = self._identify(environ, known)
            is_free = principal.may_do_all and (service, action) != ASSUME_ROLE  # also needs the role's trust policy
            if is_free or (service, action) in ALWAYS_ALLOWED:
                return self._app(environ, start_response)
            call = _read_call(environ)
            self._check(call, principal, environ)
        except RefusedError as error:
            return refuse(environ, start_response, service, error.refusal)
        if service == "s3" and action in TELLS_OF_ABSENCE:
            return self._answer_without_absence(environ, start_response, call, principal)
        return self._app(environ, start_response)

    def _identify(self, environ: WSGIEnvironment, known: Mapping[str, Any]) -> Principal:
        """Returns the caller.

        Raises RefusedError for a call that is not signed with a known key, that is for another region, or that the
        caller's temporary keys do not allow. Also raises it if one of the caller's policies is not supported.
        """
        signature = read_signature(environ)
        access_key_id = signature.access_key_id
        secret, token = find_secret(access_key_id)
        check_signature(environ, signature, secret, token, dt.datetime.now(dt.UTC))
        environ[CALLER_KEY] = name_caller(access_key_id)
        if known["service"] in REGIONAL and known["region"] not in self._regions:
            message = f"the sandbox of this folder runs in {', '.join(self._regions)}, not in {known['region']}"
            raise RefusedError(Refusal(code="InvalidRegion", message=message))
        try:
            principal = find_principal(access_key_id)
        except PolicyError as error:
            reason = "The sandbox cannot tell what this caller may do: it does not understand one of their policies"
            raise RefusedError(forbid(f"{reason}: {error}")) from error
        check_session(access_key_id, known["service"] or "", known["action"])
        return principal

    def _check(self, call: Call, principal: Principal, environ: WSGIEnvironment) -> None:
        """Raises RefusedError for the first permission that the caller lacks."""
        for ask in self._describe(call):
            verdict = principal.decide(ask, trust=self._find_trust(call, principal, ask.resource))
            if verdict != "allowed":
                environ[REFUSED_KEY] = f"{ask.action} on {ask.resource}"
                explicit = verdict == "denied"
                raise RefusedError(deny(call.service, principal.arn, ask.action, ask.resource, explicit=explicit))

    def _find_trust(self, call: Call, principal: Principal, resource: str) -> Trust:
        """Returns how the resource's own policy trusts the caller, or "account" if it has none.

        Raises RefusedError if the policy is not supported.
        """
        if (call.service, call.action) != ASSUME_ROLE:
            return "account"
        try:
            return find_trust(principal, resource)
        except PolicyError as error:
            raise RefusedError(forbid(f"The sandbox cannot tell whom {resource} trusts: {error}")) from error

    def _describe(self, call: Call) -> Iterable[Ask]:
        if call.service != "ec2":
            return describe_asks(call)
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][call.region]
        assert isinstance(backend, ec2.SandboxEC2Backend)  # noqa: S101 -- moto_setup.py installed it
        with ec2.lock:
            return list(Ec2Asks(call, backend).describe())

    def _answer_without_absence(
        self, environ: WSGIEnvironment, start_response: StartResponse, call: Call, principal: Principal
    ) -> Iterable[bytes]:
        """Forwards the call, but answers 403 instead of 404 to a caller who may not list the bucket."""
        begun: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
            begun[:] = [status, headers, exc_info]
            return lambda _: None

        body = self._app(environ, start)
        status, headers, exc_info = begun
        bucket = s3_arn(call.path.lstrip("/").partition("/")[0])
        ask = Ask(action="s3:ListBucket", resource=bucket, context=call.context)
        if status.startswith("404") and principal.decide(ask) != "allowed":
            environ[REFUSED_KEY] = f"{ask.action} on {ask.resource}"
            return refuse(environ, start_response, "s3", deny("s3", principal.arn, ask.action, ask.resource))
        start_response(status, headers, exc_info)
        return body


def _read_call(environ: WSGIEnvironment) -> Call:
    """Returns the parts of a call on which permissions depend. Restores a body after reading it."""
    known = environ[CALL_KEY]
    service, action = known["service"] or "", known["action"]
    is_form = environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
    is_json = "HTTP_X_AMZ_TARGET" in environ
    body = b""
    if (service != "s3" and (is_form or is_json)) or action == "DeleteObjects":
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
    form = parse_qsl(body.decode(errors="replace"), keep_blank_values=True) if service != "s3" and is_form else []
    return Call(
        service=service,
        action=action,
        region=known["region"] or "",
        tree=read_tree(dict(form)),
        document=_read_document(body) if is_json else {},
        # WSGI decodes the path as Latin-1.
        path=environ["PATH_INFO"].encode("latin-1").decode(errors="replace"),
        query=environ.get("QUERY_STRING", ""),
        source=environ.get("HTTP_X_AMZ_COPY_SOURCE", ""),
        body=body,
    )


def _read_document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except ValueError:  # not JSON; the service will refuse it
        return {}
    return document if isinstance(document, dict) else {}
