"""The way to AWS: clients from the standard environment, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)

from provision.errors import AwsError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

RETRY_CODES = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "Unavailable",
    }
)
"""Codes that say: the same call, a little later."""

NOT_FOUND_TIMEOUT_S = 60.0
"""How long EC2 may take to know everywhere what it has just made, in seconds."""

_PATIENT = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5})
_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})

_CREDENTIALS = "check your credentials: aws sts get-caller-identity"
_QUOTA = (
    "ask for less in cluster.toml ([provision] nodes, instance_type), or for a higher limit: "
    "aws service-quotas list-service-quotas --service-code ec2"
)
_HINTS = {
    "AuthFailure": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "ExpiredToken": "the session has ended: get new credentials (such as by aws sso login), then again",
    "InsufficientInstanceCapacity": "AWS has none of that type in that zone now: wait, or set another "
    "[provision] instance_type or subnet_id (another zone)",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "InsufficientFreeAddressesInSubnet": "set another [provision] subnet_id",
    "InvalidAMIID.NotFound": 'set [provision] ami = "auto" or to an image of that region',
    "InvalidSubnetID.NotFound": 'set [provision] subnet_id = "auto" or to a subnet of that region',
    "InvalidKeyPair.NotFound": "the key pair was deleted meanwhile: the same command makes it again",
    "InvalidGroup.NotFound": "the security group was deleted meanwhile: the same command makes it again",
    "Unsupported": "set another [provision] instance_type or subnet_id (another zone)",
    "OptInRequired": "the account has to be opened for this, in the AWS console",
    "PendingVerification": "AWS is still verifying the account: wait for its mail",
    "Blocked": "AWS has blocked the account: its support can say why",
}
for _code in ("ExpiredTokenException", "RequestExpired"):
    _HINTS[_code] = _HINTS["ExpiredToken"]
for _code in RETRY_CODES:
    _HINTS[_code] = "AWS is busy: the same command again in a minute; it goes on where it stopped"

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_ENCODED_MESSAGE = re.compile(r"\s*Encoded authorization failure message: \S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """The AWS clients of one region.

    run_ec2: for RunInstances alone, which has a retry policy of its own (provision/launch.py): botocore's
    would also repeat capacity errors.
    """

    ec2: EC2Client
    run_ec2: EC2Client
    ssm: SSMClient
    sts: STSClient
    region: str


def make_clients(region: str) -> Clients:
    """Clients from the standard environment: AWS_PROFILE, AWS_ENDPOINT_URL, AWS_CA_BUNDLE are boto3's.

    Raises AwsError when the environment names a profile that does not exist, or an endpoint that is no URL.
    Missing credentials show at the first call.
    """
    with aws_errors("reading the AWS configuration"):
        session = boto3.session.Session(region_name=region)
        try:
            return Clients(
                ec2=session.client("ec2", config=_PATIENT),
                run_ec2=session.client("ec2", config=_ONCE),
                ssm=session.client("ssm", config=_PATIENT),
                sts=session.client("sts", config=_PATIENT),
                region=region,
            )
        except ValueError as error:  # botocore's way to say that an endpoint is no URL
            raise AwsError(str(error), hint="check AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_EC2") from error


def error_code(error: ClientError) -> str:
    """AWS's code for it, such as InvalidGroup.NotFound."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Turns what boto3 raises into AwsError: AWS's own words, then what was being done.

    A ParamValidationError passes: it is a mistake of this program, not of its user.
    """
    try:
        yield
    except ClientError as error:
        raise _translate_refusal(error, doing) from error
    except ParamValidationError:
        raise
    except BotoCoreError as error:
        raise _translate_failure(error, doing) from error


def _translate_refusal(error: ClientError, doing: str) -> AwsError:
    """AWS answered, and said no."""
    code = error_code(error)
    words = _ENCODED_MESSAGE.sub("", str(error.response.get("Error", {}).get("Message") or "no message")).rstrip()
    hint = _HINTS.get(code)
    if code in _DENIED:
        service = "ec2" if code == "UnauthorizedOperation" else "the service"
        action = re.search(r"perform: (\S+:\w+)", words)
        missing = action[1] if action else f"{service}:{error.operation_name}"
        hint = f"these credentials need the permission {missing}: ask whoever runs the account for it"
    return AwsError(f"AWS says: {words} ({code}, while {doing})", hint=hint)


def _translate_failure(error: BotoCoreError, doing: str) -> AwsError:
    """AWS was not reached, or not asked."""
    words = str(error).rstrip(". ")
    hint: str | None = None
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            hint = 'set AWS_PROFILE, or run: aws configure; without AWS: cloud = "sandbox" in cluster.toml'
        case SSOError() | TokenRetrievalError():
            hint = "sign in again: aws sso login"
        case CredentialRetrievalError():
            hint = _CREDENTIALS
        case ProfileNotFound():
            hint = "set AWS_PROFILE to one of: aws configure list-profiles"
        case SSLError():
            hint = "if a proxy or the sandbox signs with its own certificate, AWS_CA_BUNDLE has to name it"
        case EndpointConnectionError() | ConnectTimeoutError() | ProxyConnectionError() | HTTPClientError():
            hint = "check the network, [provision] region and AWS_ENDPOINT_URL, then the same command again"
    return AwsError(f"{words} (while {doing})", hint=hint)
