"""Checks a call's signature and its region before the call takes effect.

Policies have no effect: every caller may do everything.
"""

import datetime as dt
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ec2_sandbox.api.log import CALL_KEY, CALLER_KEY
from ec2_sandbox.api.refusals import Refusal, RefusedError
from ec2_sandbox.iam.principals import find_secret, name_caller
from ec2_sandbox.iam.signatures import check_signature, read_signature

# Services with an endpoint in each region. The others are global, or accept any region.
REGIONAL = ("ec2", "ssm", "servicequotas")


class Authentication:
    """WSGI middleware below ApiLog, which describes each call. regions: the sandbox's regions."""

    def __init__(self, app: WSGIApplication, regions: Iterable[str]) -> None:
        self._app = app
        self._regions = tuple(regions)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forwards the call. Raises RefusedError if it is not signed with a valid key, or is for another region."""
        known = environ[CALL_KEY]
        signature = read_signature(environ)
        access_key_id = signature.access_key_id
        secret, token = find_secret(access_key_id)
        check_signature(environ, signature, secret, token, dt.datetime.now(dt.UTC))
        environ[CALLER_KEY] = name_caller(access_key_id)
        if known["service"] in REGIONAL and known["region"] not in self._regions:
            message = f"the sandbox of this folder runs in {', '.join(self._regions)}, not in {known['region']}"
            raise RefusedError(Refusal(code="InvalidRegion", message=message))
        return self._app(environ, start_response)
