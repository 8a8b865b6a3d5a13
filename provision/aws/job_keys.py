"""Temporary AWS credentials for a job, limited to what it needs from S3.

For a user's long-lived key: STS GetFederationToken with a policy. For a role: STS AssumeRole of the same role with a
policy, as the profile assumes it, or by the role itself if it trusts itself. If AWS allows neither, the job gets the
caller's own credentials, and the user is warned. STS's ways to request credentials, compared:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_sts-comparison.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError
from botocore.session import Session as BotocoreSession
from botocore.session import get_session

from foundation.errors import AwsError
from provision.aws.clients import error_code
from provision.aws.credentials import read_credentials

if TYPE_CHECKING:
    from mypy_boto3_sts import STSClient
    from mypy_boto3_sts.type_defs import CredentialsTypeDef

MIN_S = 900
MAX_FEDERATION_S = 36 * 3600
MAX_ROLE_S = 12 * 3600
CHAINED_S = 3600
"""AWS's limit for role chaining: keys of a role that are requested with the keys of a role."""
SESSION_S = 12 * 3600
START_S = 3600
"""The time that a job may take in addition to its max_duration: to wait for its turn, to set up, to copy its log."""

_DENIED = frozenset({"AccessDenied", "AccessDeniedException"})
_ASSUMED = re.compile(r"arn:([^:]+):sts::(\d+):assumed-role/([^/]+)/(.+)")
_OF_SSO = "AWSReservedSSO_"
_OPERATIONS = {"assume-role": "AssumeRole", "assume-role-with-web-identity": "AssumeRoleWithWebIdentity"}
"""The STS operation that gets the keys of a profile's role, by botocore's name for the method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobKeys:
    """secrets: environment variables. ends_at: None if unknown.

    warning: why the keys are not limited, and what to do; None if they are limited.
    """

    secrets: Mapping[str, str] = field(repr=False)
    ends_at: datetime | None = None
    warning: str | None = None


def make_job_keys(
    session: boto3.Session, sts: "STSClient", *, policy: str, name: str, max_duration_s: int | None
) -> JobKeys:
    """Creates credentials for a job from those of this machine.

    policy: what they allow, as JSON. name: of the federated user. max_duration_s: the job's; None: as long as AWS
    allows. Raises AwsError if there are no credentials, and botocore's errors.
    """
    frozen, credentials = read_credentials(session), session.get_credentials()
    if frozen is None or credentials is None:
        raise AwsError(
            "no AWS credentials were found, and [data], [[volumes]] or the job names s3:// URLs",
            hint="aws configure, or set AWS_PROFILE; a job without s3:// URLs needs no credentials",
        )
    wanted_s = MAX_FEDERATION_S if max_duration_s is None else max(MIN_S, max_duration_s + START_S)
    if not frozen.token:
        return _federate(sts, policy=policy, name=name, wanted_s=min(wanted_s, MAX_FEDERATION_S))
    if credentials.method in _OPERATIONS:
        limited = _assume_by_profile(credentials.method, policy=policy, wanted_s=min(wanted_s, MAX_ROLE_S))
        if limited is not None:
            return limited
    arn = sts.get_caller_identity()["Arn"]
    limited = _assume_itself(sts, arn, policy=policy, wanted_s=min(wanted_s, CHAINED_S))
    if limited is not None:
        return limited
    return _keys_in_use(credentials, frozen, warning=_warn(arn))


def _federate(sts: "STSClient", *, policy: str, name: str, wanted_s: int) -> JobKeys:
    try:
        response = sts.get_federation_token(Name=name, Policy=policy, DurationSeconds=wanted_s)
        return _keys_of(response["Credentials"])
    except ClientError as error:
        if error_code(error) not in _DENIED:
            raise
    arn = sts.get_caller_identity()["Arn"]
    return _keys_of(
        sts.get_session_token(DurationSeconds=SESSION_S)["Credentials"],
        warning=_warn(arn),
    )


def _assume_by_profile(method: str, *, policy: str, wanted_s: int) -> JobKeys | None:
    """Assumes the profile's role again, as botocore does, with a policy; None if that is impossible."""
    for duration_s in (wanted_s, None):
        session = get_session()
        if _asks_for_code(session):
            return None  # the same MFA code works only once
        _add_policy(session, method, policy=policy, duration_s=duration_s)
        credentials: Any = session.get_credentials()
        try:
            frozen = credentials.get_frozen_credentials()
        except ClientError as error:
            if error_code(error) in _DENIED:
                return None
            if duration_s is None or "DurationSeconds" not in str(error):
                raise
            continue  # longer than the role's MaxSessionDuration: ask for its default
        return _keys_in_use(credentials, frozen)
    return None


def _add_policy(session: BotocoreSession, method: str, *, policy: str, duration_s: int | None) -> None:
    """Has botocore limit the role that the profile names, but not the roles on the way to it."""
    role = session.get_scoped_config().get("role_arn")

    def add(**event: Any) -> None:
        params = event["params"]
        if method == "assume-role" and params["RoleArn"] != role:
            return
        params["Policy"] = policy
        if duration_s is not None:
            params.setdefault("DurationSeconds", duration_s)

    session.register(f"before-parameter-build.sts.{_OPERATIONS[method]}", add)


def _asks_for_code(session: BotocoreSession) -> bool:
    """Whether a profile on the way to the role asks for an MFA code."""
    profiles: dict[str, dict[str, str]] = session.full_config["profiles"]
    name, seen = session.profile or "default", set[str]()
    while name in profiles and name not in seen:
        seen.add(name)
        if "mfa_serial" in profiles[name]:
            return True
        name = profiles[name].get("source_profile", "")
    return False


def _assume_itself(sts: "STSClient", arn: str, *, policy: str, wanted_s: int) -> JobKeys | None:
    """Has the role assume itself with a policy; None if it may not, or if the caller is not a role."""
    found = _ASSUMED.fullmatch(arn)
    if found is None or found[3].startswith(_OF_SSO):  # the trust policy of an SSO role cannot be changed
        return None
    try:
        response = sts.assume_role(
            RoleArn=_role_arn(found), RoleSessionName=found[4], Policy=policy, DurationSeconds=wanted_s
        )
    except ClientError as error:
        if error_code(error) not in _DENIED:
            raise
        return None
    return _keys_of(response["Credentials"])


def _role_arn(found: re.Match[str]) -> str:
    """The role of a session. A session's ARN lacks the role's path; most roles have none."""
    return f"arn:{found[1]}:iam::{found[2]}:role/{found[3]}"


def _keys_of(credentials: "CredentialsTypeDef", *, warning: str | None = None) -> JobKeys:
    secrets = _secrets(credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"])
    return JobKeys(secrets=secrets, ends_at=credentials["Expiration"], warning=warning)


def _keys_in_use(credentials: Any, frozen: Any, *, warning: str | None = None) -> JobKeys:
    """The keys that botocore uses; it renews them only for this process."""
    secrets = _secrets(frozen.access_key, frozen.secret_key, frozen.token)
    return JobKeys(secrets=secrets, ends_at=getattr(credentials, "_expiry_time", None), warning=warning)


def _secrets(access_key: str, secret_key: str, token: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_SESSION_TOKEN": token}


def _warn(arn: str) -> str:
    return (
        f"this job's credentials are not limited: any code in it may do all that {arn} may, such as delete data and "
        'terminate instances. To limit them, set [provision] instance_profile = "auto"; the documentation of [train] '
        "(What a job's credentials may do) has other ways"
    )
