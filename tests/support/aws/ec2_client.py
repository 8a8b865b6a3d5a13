"""botocore clients for the sandbox, and shortcuts for tests."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sandbox_steps import find_image

Client = Any


def client(service: str, **config: Any) -> Client:
    """A botocore client with one attempt per call, so that a test sees every response."""
    if config:
        return _make_client(service, **config)
    return _kept_client(service, os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ACCESS_KEY_ID"])


def _make_client(service: str, **config: Any) -> Client:
    settings = Config(retries={"total_max_attempts": 1}, **config)
    return botocore.session.get_session().create_client(service, config=settings)


@functools.cache
def _kept_client(service: str, _endpoint: str, _key: str) -> Client:
    """Cached for all tests with this environment, since making a client is slow."""
    return _make_client(service)


def run(ec2: Client, count: int = 1, **asked: Any) -> list[dict[str, Any]]:
    wanted = {"ImageId": find_image(), "InstanceType": "c5.xlarge", "MinCount": count, "MaxCount": count} | asked
    return list(ec2.run_instances(**wanted)["Instances"])


def ids_of(instances: list[dict[str, Any]]) -> list[str]:
    return [instance["InstanceId"] for instance in instances]


def describe(ec2: Client, **asked: Any) -> list[dict[str, Any]]:
    return [i for r in ec2.describe_instances(**asked)["Reservations"] for i in r["Instances"]]


def live(ec2: Client) -> list[dict[str, Any]]:
    return [i for i in describe(ec2) if i["State"]["Name"] in ("pending", "running")]


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return str(caught.value.response["Error"]["Code"])


@contextmanager
def refused_as(code: str, *, match: str | None = None) -> Iterator[pytest.ExceptionInfo[ClientError]]:
    """Expects a ClientError with this code; match: for its text."""
    with pytest.raises(ClientError, match=match) as caught:
        yield caught
    assert code_of(caught) == code
