"""moto's services as one WSGI application. moto's own needs Flask, which takes 0.2 s of a start and 7 MB."""

import threading
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from moto.backend_index import backend_url_patterns
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import Request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter, Map, Rule
from werkzeug.wrappers import Response

from ec2_sandbox.api.log import CALL_KEY


class ServerRequest(Request):
    """A request as moto's services take it."""

    from_wsgi_server = True


class Pattern(BaseConverter):
    """A part of a path that matches a regular expression, as in moto's lists of paths."""

    part_isolating = False

    def __init__(self, url_map: Map, regex: str) -> None:
        super().__init__(url_map)
        self.regex = regex


class Services:
    """WSGI application below ApiLog, which describes each call. A service is imported at its first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, Map] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a call. Raises NotImplementedError for a service that moto lacks."""
        paths, request = self._find_paths(environ[CALL_KEY]["service"] or "s3"), ServerRequest(environ)
        try:
            handler, _ = paths.bind_to_environ(environ).match()
            answer = handler(request, request.raw_url, dict(request.headers))
        except HTTPException as error:
            return error.get_response(environ)(environ, start_response)
        status, headers, body = answer if len(answer) == 3 else (200, {}, answer)
        response = Response(body, status, headers)
        if request.method == "HEAD" and "content-length" in headers:
            response.headers["Content-Length"] = headers["content-length"]
        return response(environ, start_response)

    def _find_paths(self, service: str) -> Map:
        """Returns the handlers of a service's calls, by their paths. service: its name in signatures."""
        with self._lock:
            if service not in self._paths:
                address = f"https://{service}.us-east-1.amazonaws.com"
                name = next((name for name, pattern in backend_url_patterns if pattern.match(address)), None)
                if name is None:
                    raise NotImplementedError(f"it does not have the service {service}")
                regions = get_backend(name)[DEFAULT_ACCOUNT_ID]  # type: ignore[call-overload]  # any of its names
                paths = regions["us-east-1" if "us-east-1" in regions else "aws"].flask_paths
                rules = [Rule(path, endpoint=paths[path], strict_slashes=False) for path in paths if path]
                self._paths[service] = Map(rules, converters={"regex": Pattern}, merge_slashes=False)
            return self._paths[service]
