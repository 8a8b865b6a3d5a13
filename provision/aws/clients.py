"""AWS clients from the standard environment, and the translation of AWS errors."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    LoginError,
    MetadataRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    RefreshWithMFAUnsupportedError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)

from foundation.errors import AwsError, ClusterError, CredentialsError
from provision.aws.credentials import read_credentials, refuse
from provision.aws.error_hints import (
    CHECK_CREDENTIALS,
    CREDENTIAL_CODES,
    NAME_TAKEN,
    NO_CREDENTIALS,
    NOT_AWS,
    NOT_REACHED,
    PROXY,
    RETRY_CODES,
    SIGN_IN,
    find_hint,
)
from provision.model import TAG_NAME

if TYPE_CHECKING:
    import boto3
    from botocore.client import BaseClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_efs import EFSClient
    from mypy_boto3_fsx import FSxClient
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_sts import STSClient

ATTEMPTS = 9
"""Attempts of one call, by botocore and this module together: about a minute in all."""
_LONGEST_DELAY_S = 20.0
NOT_FOUND_TIMEOUT_S = 60.0
"""How many seconds EC2 may take until all its servers know a new resource."""

_ENCODED_MESSAGE = re.compile(r"\s*Encoded authorization failure message: \S+")
C = TypeVar("C", bound="BaseClient")
T = TypeVar("T")


class Clients:
    """The AWS clients of one region, each created at its first use. Thread-safe.

    run_ec2: only for RunInstances, which has its own retries (provision/resources/run_instances.py): botocore's would
    also repeat capacity errors. pricing: the price list, in one of the regions that have it, or in another partition
    the cluster's own (https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html).
    """

    ec2: EC2Client
    run_ec2: EC2Client
    sts: STSClient
    iam: IAMClient
    s3: S3Client
    efs: EFSClient
    fsx: FSxClient
    service_quotas: ServiceQuotasClient
    pricing: PricingClient

    def __init__(self, session: boto3.session.Session, *, region: str) -> None:
        self.region = region
        self.session = session
        self._making = threading.RLock()  # a session cannot create two clients at once

    def __getattr__(self, name: str) -> Any:
        """Creates the client of this name."""
        if name not in Clients.__annotations__:
            raise AttributeError(name)
        from provision.aws.session import BRIEF, ONCE, PATIENT  # noqa: PLC0415 - boto3

        config = {"run_ec2": ONCE, "service_quotas": BRIEF, "pricing": BRIEF}.get(name, PATIENT)
        is_elsewhere = name == "pricing" and not (self.region.startswith("cn-") or "gov" in self.region)
        service, region = name.removeprefix("run_").replace("_", "-"), "us-east-1" if is_elsewhere else None
        make: Any = self.session.client  # the stubs know no name that is not a literal
        with self._making:
            client = make(service, region_name=region, config=config)
        self.__dict__[name] = _patient(client) if config is PATIENT else client
        return self.__dict__[name]

    def make_ecr(self, region: str) -> Any:
        """ECR in the region of an image, which may be another one."""
        from provision.aws.session import PATIENT  # noqa: PLC0415 - boto3

        with self._making:
            return self.session.client("ecr", region_name=region, config=PATIENT)


def _patient(client: C) -> C:
    """Returns the client. It retries throttled calls, up to ATTEMPTS in all, with jittered back-off.

    EC2 throttles the calls of an account, and all users of the account share the limit
    (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html). botocore's standard mode gives up after
    seconds, which would leave an incomplete cluster.

    Each attempt sends the same request, with the same ClientToken. Lost connections and HTTP 5xx are left to botocore:
    an endpoint that does not exist should not take a minute to fail.
    """
    service = client.meta.service_model.service_id.hyphenize()
    # The last handler: it runs after botocore's own has given up.
    name = f"needs-retry.{service}"
    client.meta.events.register_last(name, _find_delay)  # type: ignore[arg-type]  # the stubs lack handlers that return
    return client


def _find_delay(attempts: int, response: tuple[Any, Mapping[str, Any]] | None, **_: object) -> float | None:
    """Returns the seconds until the next attempt; None for no further attempt. attempts: made so far."""
    if response is None or attempts >= ATTEMPTS:
        return None
    if response[1].get("Error", {}).get("Code") not in RETRY_CODES:
        return None
    ceiling_s = min(2.0 ** (attempts - 1), _LONGEST_DELAY_S)
    return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


def make_clients(region: str) -> Clients:
    """Returns clients from boto3's environment: AWS_PROFILE, AWS_ENDPOINT_URL, AWS_CA_BUNDLE.

    Gets the credentials in the calling thread: a profile may prompt for an MFA code. Raises AwsError if that fails, and
    for an endpoint that is not a URL. The first call reports missing credentials.
    """
    from provision.aws.session import make_session  # noqa: PLC0415 - boto3

    with aws_errors("looking for AWS credentials"):
        clients = Clients(make_session(region), region=region)
        read_credentials(clients.session)
        try:
            clients.ec2  # noqa: B018 - reports errors in the environment early
        except ValueError as error:  # botocore's error for an endpoint that is not a URL
            raise AwsError(str(error), hint="check AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_EC2") from error
        return clients


def error_code(error: ClientError) -> str:
    """Returns AWS's error code, such as InvalidGroup.NotFound."""
    return str(error.response.get("Error", {}).get("Code", ""))


def unless_refused(codes: Collection[str], call: Callable[[], T]) -> T | None:
    """Returns the result of a call; None if AWS refuses it with one of these codes. Raises other ClientErrors."""
    try:
        return call()
    except ClientError as error:
        if error_code(error) not in codes:
            raise
        return None


def aws_words(error: ClientError) -> str:
    """Returns AWS's message and error code, for this program's messages."""
    return f"{_find_message(error)} ({error_code(error)})"


def not_ours(what: str, *, name: str) -> ClusterError:
    """Returns the error for a resource that has the name, but not the tag, of the cluster `name`."""
    return ClusterError(
        f"the {what} exists, but this program did not make it for this cluster (no tag {TAG_NAME} = {name})",
        hint=NAME_TAKEN,
    )


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Turns boto3's errors into AwsError: AWS's message, then `doing`.

    ParamValidationError passes unchanged: it is a mistake of this program, not of its user.
    """
    try:
        yield
    except ClientError as error:
        raise translate_refusal(error, doing) from error
    except ParamValidationError:
        raise
    except (BotoCoreError, EOFError) as error:
        raise translate_failure(error, doing) from error
    except RuntimeError as error:
        if "credentials" not in str(error):  # botocore's error if a program or a service renews them with expired ones
            raise
        raise translate_failure(refuse(error), doing) from error
    except _find_parser_error() as error:  # not a BotoCoreError; caused by the login page of a proxy or a hotel
        raise AwsError(f"the response is not from AWS (while {doing})", hint=NOT_AWS) from error


def _find_parser_error() -> type[Exception]:
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - as slow to import as boto3

    return ResponseParserError


def translate_refusal(error: ClientError, doing: str) -> AwsError:
    """Returns the error for a refused call: AWS's message, the action in progress, and a hint."""
    code = error_code(error)
    message = _find_message(error)
    kind = CredentialsError if code in CREDENTIAL_CODES else AwsError
    return kind(
        f"AWS says: {message} ({code}, while {doing})",
        hint=find_hint(code, message, operation=error.operation_name),
    )


def _find_message(error: ClientError) -> str:
    """Returns AWS's message without EC2's long encoded part."""
    words = str(error.response.get("Error", {}).get("Message") or "no message")
    return _ENCODED_MESSAGE.sub("", words).rstrip()


_EXPORT = 'eval "$(aws configure export-credentials --format env)"'
_FAILURES: tuple[tuple[tuple[type[Exception], ...], type[AwsError], str | None, str], ...] = (
    ((NoCredentialsError,), CredentialsError, "no AWS credentials were found", NO_CREDENTIALS),
    ((LoginError,), CredentialsError, None, SIGN_IN),
    ((SSOError, TokenRetrievalError), CredentialsError, None, "sign in again: aws sso login"),
    (
        (PartialCredentialsError, CredentialRetrievalError, MetadataRetrievalError),
        CredentialsError,
        None,
        CHECK_CREDENTIALS,
    ),
    ((RefreshWithMFAUnsupportedError,), CredentialsError, None, f"log in at a terminal: {_EXPORT}"),
    ((ProfileNotFound,), CredentialsError, None, "set AWS_PROFILE to one of: aws configure list-profiles"),
    (
        (EOFError,),
        CredentialsError,
        "the profile asks for an MFA code, which needs a terminal",
        f"log in at a terminal: {_EXPORT}",
    ),
    ((SSLError,), AwsError, None, "if a proxy or the sandbox uses its own certificate, set AWS_CA_BUNDLE to it"),
    ((ProxyConnectionError,), AwsError, None, PROXY),
    ((EndpointConnectionError, ConnectTimeoutError, HTTPClientError), AwsError, None, NOT_REACHED),
)
"""For errors without an answer of AWS: the kind of error to show, its words (None: botocore's), and the hint. The first
row that fits is used."""


def translate_failure(error: BotoCoreError | EOFError, doing: str) -> AwsError:
    """Returns the error for a call that did not reach AWS, or was not sent, for example without credentials."""
    rows = ((kind, words, hint) for types, kind, words, hint in _FAILURES if isinstance(error, types))
    kind, words, hint = next(rows, (AwsError, None, None))
    refusal = getattr(getattr(error, "kwargs", {}).get("error"), "original_error", None)
    why = f": {refusal}" if isinstance(refusal, OSError) else ""  # of a proxy, such as 407
    return kind(f"{words or str(error).strip().rstrip('.')}{why} (while {doing})", hint=hint)
