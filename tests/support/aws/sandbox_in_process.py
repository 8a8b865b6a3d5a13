"""The sandbox's AWS in the test's process: all layers except network and hosts.

botocore's event `before-send` passes requests directly to the sandbox's WSGI application. So faults, quotas, tokens,
placement groups and eventual consistency are the sandbox's, and a call takes a millisecond.
"""

import io
import threading
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from wsgiref.types import WSGIApplication

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from werkzeug.test import create_environ

from ec2_sandbox.api import moto_setup
from ec2_sandbox.api.consistency import Unsettled
from ec2_sandbox.api.ec2 import Ec2Settings, Regions, SandboxEC2Backend
from ec2_sandbox.api.faults import ApiFaults, CutError
from ec2_sandbox.api.log import ApiLog, StateLog
from ec2_sandbox.api.server import Services, catch_errors
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.faults import FaultBook
from ec2_sandbox.hosts.fleet import PhantomFleet
from ec2_sandbox.paths import Ranges
from provision.aws.clients import Clients

REGION = "us-east-1"
OTHER_REGION = "us-west-2"
CALLER = "arn:aws:iam::123456789012:user/ada"


class Clock:
    """Replaces the module `time`; time passes only in sleep()."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self.slept_s: list[float] = []

    def time(self) -> float:
        return self.now_s

    monotonic = time
    perf_counter = time

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s


class InProcessSandbox:
    """EC2, S3, IAM and the other services, without hosts. `clock` measures consistency_delay_s."""

    def __init__(self, log: Path, clock: Clock) -> None:
        self.clock = clock
        self._one_at_a_time = threading.Lock()
        self.book = FaultBook()
        self.fleet = PhantomFleet()
        self.config = FolderSettings(hosts="none", others=(OTHER_REGION,))
        self.state_log = log.with_name("states.jsonl")
        self._states = StateLog(self.state_log)
        self.whole = self._install()
        self.app: WSGIApplication = ApiLog(ApiFaults(catch_errors(Services()), self.book, lambda _: CALLER), log)

    @property
    def backend(self) -> SandboxEC2Backend:
        """EC2 in REGION."""
        return self.in_region(REGION)

    def in_region(self, region: str) -> SandboxEC2Backend:
        """EC2 in a region."""
        found = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        assert isinstance(found, SandboxEC2Backend)
        return found

    def _install(self) -> Regions:
        return moto_setup.install(
            Ec2Settings(
                config=self.config,
                ranges=Ranges(private=IPv4Network("10.77.0.0/16"), public=IPv4Network("198.18.0.0/20")),
                wake=lambda: None,
                fleet=self.fleet,
                book=self.book,
                note=self._states.note,
            )
        )

    def reset(self, **config: Any) -> None:
        """Resets to an empty account without faults. config: keys of [sandbox] in cluster.toml."""
        self.book.disarm("all")
        self.config = FolderSettings(hosts="none", others=(OTHER_REGION,), **config)
        for backends in (iam_backends, s3_backends, ec2_backends):
            for backend in [*backends[DEFAULT_ACCOUNT_ID].values()]:
                backend.reset()
        self.whole = self._install()
        for region in (REGION, OTHER_REGION):
            self.in_region(region).unsettled = Unsettled(self.config.consistency_delay_s, self.clock.monotonic)

    def make_clients(self, watch: Callable[[boto3.session.Session], None], region: str = REGION) -> Clients:
        """Clients whose requests all go here. watch: may register for botocore's events."""
        session = boto3.session.Session(
            region_name=region, aws_access_key_id="testing", aws_secret_access_key="testing"
        )
        session.events.register("before-send", self._answer)
        watch(session)
        return Clients(session, region=region)

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> Any:
        with self._one_at_a_time:
            return self._ask(request)

    def _ask(self, request: AWSPreparedRequest) -> AWSResponse:
        self.fleet.reconcile(self.whole)
        status: list[Any] = []

        def start_response(line: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
            status[:] = [int(line[:3]), dict(headers)]
            return None

        try:
            body = b"".join(self.app(_environ(request), start_response))
        except CutError as error:
            raise ConnectionClosedError(endpoint_url=request.url, error=error) from error
        self.fleet.reconcile(self.whole)
        return AWSResponse(request.url, status[0], status[1], _Raw(body))


class _Raw(io.BytesIO):
    """The body of a response, for botocore."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def _environ(request: AWSPreparedRequest) -> dict[str, Any]:
    parts = urlsplit(request.url)
    given: Any = request.headers.items()
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in given}
    sent: Any = {"method": request.method, "headers": headers, "errors_stream": io.StringIO()}
    body: Any = request.body or b""
    sent["data"] = body if isinstance(body, bytes | str) else body.read()
    return create_environ(parts.path, f"https://{parts.netloc}", query_string=parts.query, **sent)
