"""The way to AWS: clients from the standard environment, and its errors in our words."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import boto3
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
from botocore.session import get_session

from provision.errors import AwsError, ClusterError, CredentialsError
from provision.hints import CHECK_CREDENTIALS, CREDENTIAL_CODES, NO_CREDENTIALS, NOT_AWS, NOT_REACHED, find_hint
from provision.model import TAG_NAME
from provision.patience import be_patient
from provision.service_data import Operations, find_loader

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

NOT_FOUND_TIMEOUT_S = 60.0
"""How long EC2 may take to know everywhere what it has just made, in seconds."""

_PATIENT = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5})
_BRIEF = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
"""For what `up` can do without."""
_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})

_ENCODED_MESSAGE = re.compile(r"\s*Encoded authorization failure message: \S+")
C = TypeVar("C", bound=BaseClient)

PRICING_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1"}
"""Where the price list of all regions can be asked, by the first letters of one's own region; us-east-1 otherwise
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html)."""


class Clients:
    """The AWS clients of one region, each made when it is first used. Safe to use from several threads.

    run_ec2: for RunInstances alone, which has a retry policy of its own (provision/launch.py): botocore's
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
    be_patient(client)
    return client


def make_clients(region: str, *, kept: Path | None = None, operations: Operations | None = None) -> Clients:
    """Clients from the standard environment: AWS_PROFILE, AWS_ENDPOINT_URL, AWS_CA_BUNDLE are boto3's.

    kept: a folder for short descriptions of the services that `operations` names, whose clients know no others.
    Raises AwsError when the environment names a profile that does not exist, or an endpoint that is no URL.
    Missing credentials show at the first call.
    """
    with aws_errors("reading the AWS configuration"):
        session = get_session()
        # Who has descriptions of services in a place of his own gets botocore's loader.
        if kept is not None and session.get_config_variable("data_path") is None:
            session.register_component("data_loader", find_loader(kept, operations or {}))
        clients = Clients(boto3.session.Session(region_name=region, botocore_session=session), region=region)
        try:
            clients.ec2  # noqa: B018 - shows at once what is wrong with the environment
        except ValueError as error:  # botocore's way to say that an endpoint is no URL
            raise AwsError(str(error), hint="check AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_EC2") from error
        return clients


def error_code(error: ClientError) -> str:
    """AWS's code for it, such as InvalidGroup.NotFound."""
    return str(error.response.get("Error", {}).get("Code", ""))


def aws_words(error: ClientError) -> str:
    """AWS's own message and its code, fit to be shown."""
    return f"{_find_message(error)} ({error_code(error)})"


def not_ours(error: ClientError, what: str, *, name: str) -> ClusterError:
    """The error for a name that is taken by something that lacks the tags of the cluster `name`."""
    return ClusterError(
        f"AWS says: {aws_words(error)}: a {what} is there that this program did not make for this cluster "
        f"(no tag {TAG_NAME} = {name})",
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
            hint = NOT_REACHED
    words = str(error).rstrip(". ")
    return kind(f"{words} (while {doing})", hint=hint)
