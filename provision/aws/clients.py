"""The way to AWS: clients from the standard environment, and its errors in our words."""

from __future__ import annotations

import difflib
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.session
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    InvalidConfigError,
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
from botocore.parsers import ResponseParserError

from foundation.errors import AwsError, ClusterError, CredentialsError
from provision.aws.error_hints import (
    CHECK_CREDENTIALS,
    CREDENTIAL_CODES,
    NO_CREDENTIALS,
    NOT_AWS,
    NOT_REACHED,
    RETRY_CODES,
    find_hint,
)
from provision.model import TAG_NAME

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

ATTEMPTS = 9
"""Of one call: botocore's own, then ours. About a minute in all."""
_LONGEST_DELAY_S = 20.0
NOT_FOUND_TIMEOUT_S = 60.0
"""How long EC2 may take to know everywhere what it has just made, in seconds."""

_PATIENT = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5})
_BRIEF = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
"""For what `up` can do without."""
_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})

_REGION_OF_ENDPOINT = re.compile(r"\.([a-z]+(?:-[a-z]+)+-[0-9]+)\.amazonaws\.com")
_ENCODED_MESSAGE = re.compile(r"\s*Encoded authorization failure message: \S+")
C = TypeVar("C", bound=BaseClient)

PRICING_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1"}
"""Where the price list of all regions can be asked, by the first letters of one's own region; us-east-1 otherwise
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html)."""


class Clients:
    """The AWS clients of one region, each made when it is first used. Safe to use from several threads.

    run_ec2: for RunInstances alone, with its own retry policy (provision/resources/launch.py): botocore's
    would also repeat capacity errors.
    """

    def __init__(self, session: boto3.session.Session, *, region: str) -> None:
        self.region = region
        self.session = session
        self._making = threading.RLock()  # a session may not make two clients at once

    @cached_property
    def ec2(self) -> EC2Client:
        """EC2, patient with throttling."""
        with self._making:
            return _patient(self.session.client("ec2", config=_PATIENT))

    @cached_property
    def run_ec2(self) -> EC2Client:
        """EC2 without retries."""
        with self._making:
            return self.session.client("ec2", config=_ONCE)

    @cached_property
    def ssm(self) -> SSMClient:
        """Systems Manager, for its public parameters."""
        with self._making:
            return _patient(self.session.client("ssm", config=_PATIENT))

    @cached_property
    def sts(self) -> STSClient:
        """STS: who we are."""
        with self._making:
            return _patient(self.session.client("sts", config=_PATIENT))

    @cached_property
    def iam(self) -> IAMClient:
        """IAM: the nodes' role."""
        with self._making:
            return _patient(self.session.client("iam", config=_PATIENT))

    @cached_property
    def s3(self) -> S3Client:
        """S3, for what an interrupted upload left."""
        with self._making:
            return _patient(self.session.client("s3", config=_PATIENT))

    @cached_property
    def service_quotas(self) -> ServiceQuotasClient:
        """Service Quotas: how many vCPUs may run."""
        with self._making:
            return self.session.client("service-quotas", config=_BRIEF)

    @cached_property
    def pricing(self) -> PricingClient:
        """The price list; in one of the regions that have it."""
        with self._making:
            region = PRICING_REGIONS.get(self.region.partition("-")[0], "us-east-1")
            if self.region.startswith("cn-") or "gov" in self.region:
                region = self.region  # other partitions, which know nothing of these
            return self.session.client("pricing", region_name=region, config=_BRIEF)


def _patient(client: C) -> C:
    """The client; it repeats what AWS is too busy for, ATTEMPTS times in all, with jittered back-off.

    EC2 throttles an account's calls by token buckets, which a busy account shares with everybody in it
    (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html). botocore's standard mode gives up after
    seconds, and that would leave a cluster half made.

    It is the same request each time, its ClientToken included. What else botocore repeats (lost connections, HTTP
    5xx) is left to it: an endpoint that is not there should not take a minute to say so.
    """
    service = client.meta.service_model.service_id.hyphenize()
    # The last handler: botocore's own answers first, and this one once that has given up.
    name = f"needs-retry.{service}"
    client.meta.events.register_last(name, _find_delay)  # type: ignore[arg-type]  # the stubs know no handler that answers
    return client


def _find_delay(attempts: int, response: tuple[Any, Mapping[str, Any]] | None, **_: object) -> float | None:
    """In how many seconds to ask again; None: not. attempts: how many there have been."""
    if response is None or attempts >= ATTEMPTS:
        return None
    if response[1].get("Error", {}).get("Code") not in RETRY_CODES:
        return None
    ceiling_s = min(2.0 ** (attempts - 1), _LONGEST_DELAY_S)
    return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


def make_clients(region: str) -> Clients:
    """Clients from the standard environment: AWS_PROFILE, AWS_ENDPOINT_URL, AWS_CA_BUNDLE are boto3's.

    Raises AwsError when the environment names a profile that does not exist, or an endpoint that is no URL.
    Missing credentials show at the first call.
    """
    with aws_errors("reading the AWS configuration"):
        clients = Clients(boto3.session.Session(region_name=region), region=region)
        try:
            clients.ec2  # noqa: B018 - shows at once what is wrong with the environment
        except ValueError as error:  # botocore's way to say that an endpoint is no URL
            raise AwsError(str(error), hint="check AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_EC2") from error
        return clients


def find_credentials(clients: Clients) -> None:
    """Get this machine's credentials now, in the calling thread: a profile may ask for an MFA code at the terminal.

    Missing credentials are no error here; the first call reports them. Raises AwsError.
    """
    with aws_errors("looking for AWS credentials"):
        found = clients.session.get_credentials()
        if found is not None:
            found.get_frozen_credentials()


def error_code(error: ClientError) -> str:
    """AWS's code for it, such as InvalidGroup.NotFound."""
    return str(error.response.get("Error", {}).get("Code", ""))


def aws_words(error: ClientError) -> str:
    """AWS's own message and its code, fit to be shown."""
    return f"{_find_message(error)} ({error_code(error)})"


def not_ours(what: str, *, name: str, error: ClientError | None = None) -> ClusterError:
    """The error for a name that is taken by something that lacks the tags of the cluster `name`."""
    words = f"AWS says: {aws_words(error)}: " if error is not None else ""
    return ClusterError(
        f"{words}a {what} is there that this program did not make for this cluster (no tag {TAG_NAME} = {name})",
        hint="give the cluster another name in cluster.toml, or remove it yourself",
    )


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Turns what boto3 raises into AwsError: AWS's own words, then what was being done.

    A ParamValidationError passes: it is a mistake of this program, not of its user.
    """
    try:
        yield
    except ClientError as error:
        raise translate_refusal(error, doing) from error
    except ParamValidationError:
        raise
    except BotoCoreError as error:
        raise translate_failure(error, doing) from error
    except ResponseParserError as error:  # no BotoCoreError, and what a proxy's or a hotel's login page leads to
        raise AwsError(f"the answer is not one of AWS (while {doing})", hint=NOT_AWS) from error


def translate_refusal(error: ClientError, doing: str) -> AwsError:
    """The error for an answer that was no: AWS's own words, then what was being done, and what to do next."""
    code = error_code(error)
    message = _find_message(error)
    kind = CredentialsError if code in CREDENTIAL_CODES else AwsError
    return kind(
        f"AWS says: {message} ({code}, while {doing})",
        hint=find_hint(code, message, operation=error.operation_name),
    )


def _find_message(error: ClientError) -> str:
    """Without EC2's encoded one, which is long and for nobody to read."""
    words = str(error.response.get("Error", {}).get("Message") or "no message")
    return _ENCODED_MESSAGE.sub("", words).rstrip()


def suggest_region(endpoint_url: str) -> str | None:
    """The hint for an endpoint in a region that botocore does not know, if it knows a similar one; otherwise None."""
    found = _REGION_OF_ENDPOINT.search(endpoint_url)
    if found is None:
        return None
    session, region = botocore.session.get_session(), found[1]
    partitions = session.get_available_partitions()
    known = [each for partition in partitions for each in session.get_available_regions("ec2", partition)]
    near = difflib.get_close_matches(region, known, n=1, cutoff=0.8)
    if region in known or not near:
        return None
    return f'set [provision] region = "{near[0]}": botocore knows no {region}; if that is right, {NOT_REACHED}'


def translate_failure(error: BotoCoreError, doing: str) -> AwsError:
    """The error where AWS was not reached, or not asked, as without credentials."""
    kind = AwsError
    hint: str | None = None
    match error:
        case NoCredentialsError():
            kind, hint = CredentialsError, NO_CREDENTIALS
        case PartialCredentialsError():
            kind, hint = CredentialsError, "set what is missing, or take away the rest (of the environment: unset it)"
        case LoginError():
            kind, hint = CredentialsError, "sign in again: aws login"
        case SSOError() | TokenRetrievalError():
            kind, hint = CredentialsError, "sign in again: aws sso login"
        case CredentialRetrievalError() | MetadataRetrievalError() | RefreshWithMFAUnsupportedError():
            kind, hint = CredentialsError, CHECK_CREDENTIALS
        case ProfileNotFound():
            kind, hint = CredentialsError, "set AWS_PROFILE to one of: aws configure list-profiles"
        case ConfigNotFound() | ConfigParseError() | InvalidConfigError():
            hint = (
                "mend it, or write it anew: aws configure; AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name others"
            )
        case SSLError():
            hint = "if a proxy or the sandbox signs with its own certificate, AWS_CA_BUNDLE has to name it"
        case EndpointConnectionError() | ConnectTimeoutError() | ProxyConnectionError() | HTTPClientError():
            hint = suggest_region(str(error.kwargs.get("endpoint_url"))) or NOT_REACHED
    words = str(error).rstrip(". ")
    return kind(f"{words} (while {doing})", hint=hint)
