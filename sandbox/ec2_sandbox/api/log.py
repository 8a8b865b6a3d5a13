"""The API log, with one JSON object for each call, and the log of the instances' states."""

import datetime as dt
import json
import logging
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from botocore.exceptions import UnknownServiceError
from moto.core.request import Request
from moto.core.routing import get_service_router
from moto.core.utils import utcnow
from werkzeug.exceptions import HTTPException

from ec2_sandbox.api.refusals import RefusedError
from ec2_sandbox.iam.signatures import read_body, read_signature

# Keys in a request's WSGI environment: the description of the call, its access key id, the caller's ARN once the
# signature is verified, and the fault that struck the call.
CALL_KEY = "ec2_sandbox.call"
ACCESS_KEY = "ec2_sandbox.access_key"
CALLER_KEY = "ec2_sandbox.caller"
FAULT_KEY = "ec2_sandbox.fault"

log = logging.getLogger("ec2_sandbox.api_log")

FORM = "application/x-www-form-urlencoded"
# Services whose name in signatures differs from botocore's name.
SIGNED_AS = {"elasticfilesystem": "efs"}
# Of a form: those that have a key of their own, or are large. Of the others: those that count.
LEFT_OUT = ("Action", "Version", "ClientToken", "DryRun", "UserData")
OF_JSON = ("Name", "Names", "Path")
OF_S3 = ("prefix", "versionId")
XML_CODE = re.compile(rb"<Code>([^<]+)</Code>")
JSON_TYPE = re.compile(rb'"__type"\s*:\s*"(?:[^"#]*#)?([^"]+)"')


class ApiLog:
    """WSGI middleware that writes the log.

    Each line has `time` (ISO 8601, UTC), `duration_ms`, `service`, `region`, `action`, `status` (HTTP), `dry_run`,
    and these, which are null if they do not apply: `caller` (an ARN, if the signature is valid), `error` (AWS's code),
    `client_token`, `resource` (bucket and key of an S3 call) and `fault` (the fault that struck the call).
    `parameters` are those that an IAM policy may depend on. No line contains an access key id.
    """

    def __init__(self, app: WSGIApplication, path: Path) -> None:
        self._app = app
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Forwards the call, and logs it when its status is known."""
        begun = dt.datetime.now(dt.UTC)
        environ[CALL_KEY] = describe_call(environ)
        status = [0]

        def start(line: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
            status[0] = int(line[:3])
            return start_response(line, headers, exc_info)

        try:
            body = self._app(environ, start)
        except ConnectionAbortedError:
            self._write(environ, begun, status[0], None)
            raise
        if status[0] >= 400:
            body = [b"".join(body)]
        error = find_error_code(body[0]) if status[0] >= 400 and isinstance(body, list) else None
        self._write(environ, begun, status[0], error)
        return body

    def _write(self, environ: WSGIEnvironment, begun: dt.datetime, status: int, error: str | None) -> None:
        duration = dt.datetime.now(dt.UTC) - begun
        outcome = {"status": status, "error": error, "time": begun.isoformat(), "fault": environ.get(FAULT_KEY),
                   "caller": environ.get(CALLER_KEY)}  # fmt: skip
        entry = environ[CALL_KEY] | outcome | {"duration_ms": round(duration.total_seconds() * 1000, 1)}
        with self._lock:
            append(self._file, entry)


class StateLog:
    """The log on which the bill is based: one JSON object each time that an instance enters a state.

    Each line has `time` (ISO 8601, UTC), `instance`, `state`, `reason` (EC2's code, if it ended), `type`, `market`,
    `zone`, `public_address` (whether it has one) and `disks_gib` (the current sizes of its volumes).
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, instance: Any) -> None:
        """Logs the state that an instance has entered."""
        entry = {
            "time": utcnow().replace(tzinfo=dt.UTC).isoformat(), "instance": instance.id, "state": instance.state,
            "reason": instance.state_reason.code, "type": instance.instance_type, "market": instance.market,
            "zone": instance.placement.zone, "public_address": instance.public_ip is not None,
            "disks_gib": [mapping.size for mapping in instance.block_device_mapping.values()],
        }  # fmt: skip
        append(self._file, entry)


def append(file: IO[str], entry: Mapping[str, Any]) -> None:
    """Writes a line of JSON. On a full disk, the caller still gets the response."""
    try:
        file.write(json.dumps(entry) + "\n")
    except OSError:
        log.exception("%s cannot be written", file.name)


def describe_call(environ: WSGIEnvironment) -> dict[str, Any]:
    """Returns the description of a call, and stores its access key id in `environ`.

    Restores a form's body after reading it.
    """
    environ[ACCESS_KEY], region, service = _find_credential(environ)
    form = _read_form(environ)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if "Action" in form:
        action = form["Action"][0]
    elif target:
        action = target.rpartition(".")[2]
    else:
        action = _name_operation(environ, service or "s3")
    service = service or ("s3" if not form and not target else None)
    return {
        "service": service,
        "region": region,
        "action": action,
        "client_token": form.get("ClientToken", [None])[0],
        "dry_run": form.get("DryRun", [""])[0] == "true",
        "resource": environ["PATH_INFO"].lstrip("/") if service == "s3" else None,
        "parameters": _read_parameters(environ, form) if service else {},
    }


def _read_parameters(environ: WSGIEnvironment, form: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Returns the parameters on which permissions depend. Restores a JSON body after reading it."""
    if form:
        return {name: values[0] for name, values in form.items() if name not in LEFT_OUT}
    if "HTTP_X_AMZ_TARGET" in environ:
        try:
            found = json.loads(read_body(environ))
        except ValueError:  # the service will refuse it
            return {}
        return {name: found[name] for name in OF_JSON if name in found} if isinstance(found, dict) else {}
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    copied = environ.get("HTTP_X_AMZ_COPY_SOURCE")
    return {**{name: query[name][0] for name in OF_S3 if name in query}, **({"copied": copied} if copied else {})}


def _find_credential(environ: WSGIEnvironment) -> tuple[str | None, str | None, str | None]:
    """Returns the access key id, region and service of a signature in the header or in a presigned URL."""
    try:
        found = read_signature(environ)
    except RefusedError:  # Authentication will refuse the call
        return None, None, None
    _, region, service = (*found.scope.split("/"), "", "")[:3]
    return found.access_key_id, region, service or None


def _name_operation(environ: WSGIEnvironment, service: str) -> str:
    """Returns the operation's name in botocore's model, or the request's method if no operation matches.

    service: its name in signatures. Its operations are identified by paths, as in S3.
    """
    try:
        router = get_service_router(SIGNED_AS.get(service, service))
        operation, _ = router.match(Request(environ, populate_request=False))
    except (HTTPException, UnknownServiceError):
        return str(environ["REQUEST_METHOD"])
    return str(operation.name)


def _read_form(environ: WSGIEnvironment) -> dict[str, list[Any]]:
    if not environ.get("CONTENT_TYPE", "").startswith(FORM):
        return {}
    return dict(parse_qs(read_body(environ).decode(errors="replace")))


def find_error_code(body: bytes) -> str | None:
    """Returns AWS's error code in an XML or JSON response, or None."""
    found = XML_CODE.search(body) or JSON_TYPE.search(body)
    return found.group(1).decode() if found else None
