"""Hints for AWS's error codes. Pure.

EC2's codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
Codes of all services: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_common-errors.html.
"""

import re

RETRY_CODES = frozenset(
    {
        "EC2ThrottledException",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "Unavailable",
    }
)
"""Codes that mean "try the same call later", of EC2, the JSON services and S3."""

CREDENTIAL_CODES = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
"""Codes for missing, wrong or expired credentials; the call had no effect."""

CHECK_CREDENTIALS = "check your credentials: aws sts get-caller-identity"
NO_CREDENTIALS = 'set AWS_PROFILE, or run: aws configure; without an AWS account: cloud = "sandbox" in cluster.toml'
SIGN_IN = "sign in again: aws login"
NOT_REACHED = "check the network, HTTPS_PROXY, [provision] region and AWS_ENDPOINT_URL, then run the command again"
PROXY = (
    "correct or unset HTTPS_PROXY and HTTP_PROXY, or list the host that is reached without a proxy in NO_PROXY, then "
    "run the command again"
)
NOT_AWS = "check AWS_ENDPOINT_URL and HTTPS_PROXY, and whether this network requires a login page"
NAME_TAKEN = "set another name in cluster.toml, or delete the resource yourself"
_QUOTA = (
    "reduce [provision] nodes or instance_type in cluster.toml, or request a higher limit: "
    "aws service-quotas list-service-quotas --service-code ec2"
)
_EXPIRED = "get new credentials (for example: aws sso login), then run the command again; it continues where it stopped"
_CLOCK = f"the session has expired, or this machine's clock is wrong: check it (date -u), then {CHECK_CREDENTIALS}"
_GONE = "it was deleted meanwhile, or AWS does not know it everywhere yet: cluster status, then run the command again"
_ROLE = "check which role AWS_PROFILE names in ~/.aws/config, and with its administrator, who may use it"
_HINTS = {
    **dict.fromkeys(CREDENTIAL_CODES, CHECK_CREDENTIALS),
    **dict.fromkeys(RETRY_CODES, "AWS is busy: run the command again in a minute; it continues where it stopped"),
    # Also the code of an opt-in region that the account has not enabled, and which does not know its keys.
    "AuthFailure": f"{CHECK_CREDENTIALS}; if they are right, the account must enable [provision] region first: "
    "aws account list-regions",
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "DependencyViolation": "something outside this cluster uses it (aws ec2 describe-network-interfaces): remove this "
    "use, then: cluster down",
    "VolumeInUse": "detach it (aws ec2 detach-volume --volume-id VOLUME), then: cluster down",
}

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_NAMED_ACTION = re.compile(r"perform: (\S+:\w+)")


def find_hint(code: str, words: str, *, operation: str) -> str | None:
    """Returns the hint for an error code; None for an unknown one.

    words: AWS's message, which may name the missing action. operation: the API call's name, such as RunInstances.
    """
    if code in _DENIED and operation.startswith("AssumeRole"):
        return _ROLE
    if code in _DENIED:
        return _explain_denial(code, words, operation)
    if code.isdigit():  # botocore's code for a response without an error code of AWS
        return NOT_AWS
    if code.endswith((".NotFound", ".Unknown")):
        return _GONE
    return _HINTS.get(code) or (SIGN_IN if operation == "CreateOAuth2Token" else None)


def find_named_action(words: str) -> str | None:
    """Returns the action that AWS names in a refusal, such as ec2:RunInstances; None if it names none."""
    named = _NAMED_ACTION.search(words)
    return named[1] if named else None


def _explain_denial(code: str, words: str, operation: str) -> str:
    """Explains a denied action. EC2 does not always name the action; only EC2 has the code UnauthorizedOperation."""
    action = find_named_action(words) or (f"ec2:{operation}" if code == "UnauthorizedOperation" else operation)
    if "explicit deny" in words:
        return (
            f"a policy of the account denies {action}: ask the account's administrator to change it, or which tags it "
            "requires ([provision] tags)"
        )
    return (
        f"these credentials need the permission {action}: ask the account's administrator; cluster iam-policy prints "
        "all that are needed"
    )
