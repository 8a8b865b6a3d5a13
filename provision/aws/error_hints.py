"""What a user can do about AWS's refusals, as data: error code -> advice. Pure.

The codes of EC2: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; those that every service
has: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_common-errors.html.
"""

from __future__ import annotations

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
"""Codes that say: the same call, a little later. The JSON services and S3 have words of their own for it."""

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
"""Codes that say: AWS does not know who is asking, or not any more. The call was not looked at."""

CHECK_CREDENTIALS = "check your credentials: aws sts get-caller-identity"
NO_CREDENTIALS = 'set AWS_PROFILE, or run: aws configure; without an AWS account: cloud = "sandbox" in cluster.toml'
NOT_REACHED = "check the network, [provision] region and AWS_ENDPOINT_URL, then the same command again"
NOT_AWS = (
    "this does not look like AWS: check AWS_ENDPOINT_URL, HTTPS_PROXY, and that no login page is in the way of this "
    "network"
)
_QUOTA = (
    "ask for less in cluster.toml ([provision] nodes, instance_type), or for a higher limit: "
    "aws service-quotas list-service-quotas --service-code ec2"
)
_ELSEWHERE = "wait, or give AWS more to choose from: [provision] instance_types, market, subnet_id (another zone)"
_EXPIRED = (
    "the session has ended: get new credentials (such as by aws sso login), then the same command goes on where it "
    "stopped"
)
_CLOCK = f"the session has ended, or this machine's clock is wrong: compare it (date -u), then {CHECK_CREDENTIALS}"
_GONE = "was deleted meanwhile, or is in another region than [provision] region: the same command makes it again"
_TAKEN = "give the cluster another name in cluster.toml (name), or remove it yourself"
_HINTS = {
    **dict.fromkeys(CREDENTIAL_CODES, CHECK_CREDENTIALS),
    **dict.fromkeys(RETRY_CODES, "AWS is busy: the same command again in a minute; it goes on where it stopped"),
    # AWS answers so as well in a region that the account has not enabled: an opt-in region knows no keys of it.
    "AuthFailure": f"{CHECK_CREDENTIALS}; if they are right, the account has to enable [provision] region first: "
    "aws account list-regions",
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "InsufficientInstanceCapacity": f"AWS has none of that type in that zone now: {_ELSEWHERE}",
    "InsufficientHostCapacity": f"AWS has none of that type in that zone now: {_ELSEWHERE}",
    "InsufficientFreeAddressesInSubnet": "set another [provision] subnet_id",
    "Unsupported": "set another [provision] instance_type or subnet_id (another zone)",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "SpotInstanceLimitExceeded": _QUOTA,
    "InvalidAMIID.NotFound": 'set [provision] ami = "auto", or to an image of [provision] region',
    "InvalidAMIID.Malformed": 'set [provision] ami = "auto", or to an image of [provision] region',
    "InvalidAMIID.Unavailable": 'set [provision] ami = "auto", or to an image of [provision] region',
    "InvalidSubnetID.NotFound": 'set [provision] subnet_id = "auto", or to a subnet of [provision] region',
    "InvalidKeyPair.NotFound": f"the key pair {_GONE}",
    "InvalidGroup.NotFound": f"the security group {_GONE}",
    "InvalidGroupId.Malformed": f"the security group {_GONE}",
    "InvalidPlacementGroup.Unknown": f"the placement group {_GONE}",
    "InvalidInstanceID.NotFound": "somebody else has ended the node, or AWS does not know it everywhere yet: "
    "cluster status, then the same command again",
    "InvalidGroup.Duplicate": _TAKEN,
    "InvalidKeyPair.Duplicate": _TAKEN,
    "InvalidPlacementGroup.Duplicate": _TAKEN,
    "DependencyViolation": "something that is not this cluster's holds it: aws ec2 describe-network-interfaces",
    "InvalidRegion": "set [provision] region in cluster.toml to the one that it names",
    "OptInRequired": "the account has to be opened for this first: sign in to the AWS console, which says what is "
    "missing; asking again does not help",
    "PendingVerification": "AWS is still verifying the account, which takes minutes, seldom hours: wait for its mail; "
    "asking again before does not help",
    "Blocked": "AWS has blocked the account: its support can say why",
}

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_PERFORM = re.compile(r"perform: (\S+:\w+)")


def find_hint(code: str, words: str, *, operation: str) -> str | None:
    """The advice for an error code; None for one that nobody has met.

    words: AWS's message, which may name the missing action. operation: the API call's name, such as RunInstances.
    """
    if code in _DENIED:
        return _explain_denial(code, words, operation)
    if code.isdigit():  # what botocore makes of an answer that has no code of AWS's in it
        return NOT_AWS
    return _HINTS.get(code)


def _explain_denial(code: str, words: str, operation: str) -> str:
    """EC2 does not always name the action, but all of its calls that answer so are its own."""
    named = _PERFORM.search(words)
    action = named[1] if named else f"ec2:{operation}" if code == "UnauthorizedOperation" else operation
    if "explicit deny" in words:
        return f"a policy of the account forbids {action}: whoever runs the account has to lift that"
    return (
        f"these credentials need the permission {action}: ask whoever runs the account for it; all that is needed: "
        "cluster iam-policy"
    )
