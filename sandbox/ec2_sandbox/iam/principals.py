"""The callers: the sandbox's own user, users and roles created in it, and their sessions.

All are in moto's IAM and STS. GetSessionToken and GetFederationToken replace those of moto, which return the same keys
to all callers and do not store them.
"""

import importlib
import json
from functools import cached_property

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.iam import aws_managed_policies as aws
from moto.iam import models as iam_models
from moto.iam import urls as iam_urls
from moto.iam.models import AWSManagedPolicy, IAMBackend, ManagedPolicy, Role, User, iam_backends
from moto.sts import urls as sts_urls
from moto.sts.exceptions import STSClientError, STSValidationError
from moto.sts.models import AssumedRole, STSBackend, sts_backends
from moto.sts.responses import TokenResponse

from ec2_sandbox.api.refusals import EXPIRED, UNKNOWN_KEY, RefusedError

PARTITION = "aws"
OPERATOR = "operator"
ANYBODY = "anonymous"
SESSION_S = 12 * 3600
MIN_SESSION_S = 900
ROLE_SESSION_S = 3600
"""The default MaxSessionDuration of a role, and the limit if a role assumes a role."""


class Session(AssumedRole):
    """Temporary keys of a user, among moto's assumed roles. federated: the name from GetFederationToken, or ""."""

    def __init__(self, owner: User, duration_s: int, *, federated: str = "") -> None:
        super().__init__(
            account_id=DEFAULT_ACCOUNT_ID, region_name=owner.region_name, access_key=_iam().create_temp_access_key(),
            role_session_name=federated, role_arn="", policy="", duration=duration_s, external_id="",
        )  # fmt: skip
        self.owner, self.federated = owner, federated
        _sts().assumed_roles.append(self)

    @property
    def user_id(self) -> str:
        """The id in the answer of GetCallerIdentity."""
        return f"{DEFAULT_ACCOUNT_ID}:{self.federated}" if self.federated else str(self.owner.id)

    @property
    def arn(self) -> str:
        """The ARN: the user's, or a federated user's own."""
        own = f"arn:{PARTITION}:sts::{DEFAULT_ACCOUNT_ID}:federated-user/{self.federated}"
        return own if self.federated else str(self.owner.arn)


class SandboxIamBackend(IAMBackend):
    """moto's IAM, which reads AWS's own policies when a call needs them: with their text they take 18 MB."""

    _url_module = iam_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        del self.aws_managed_policies, self.managed_policies  # both are empty: moto's setting is off

    @cached_property
    def aws_managed_policies(self) -> list[ManagedPolicy]:  # type: ignore[override]
        """AWS's own policies."""
        found = json.loads(importlib.reload(aws).aws_managed_policies_data)
        aws.aws_managed_policies_data = ""
        return [AWSManagedPolicy.from_data(name, self.account_id, self.region_name, it) for name, it in found.items()]

    @cached_property
    def managed_policies(self) -> dict[str, ManagedPolicy]:  # type: ignore[override]
        """All policies, by ARN."""
        return {policy.arn: policy for policy in self.aws_managed_policies}


class SandboxStsResponse(TokenResponse):
    """moto's STS actions, with new keys for each session."""

    @property
    def _user(self) -> User:
        """The caller. Raises STSClientError for temporary keys, which open no sessions."""
        if user := _find_user(self.get_access_key()):
            return user
        raise STSClientError("AccessDenied", "Cannot open a session with session credentials")

    def get_session_token(self) -> ActionResult:
        """Returns temporary keys with the caller's permissions."""
        duration_s = self._get_int_param("DurationSeconds", SESSION_S)
        return ActionResult({"Credentials": Session(self._user, duration_s)})

    def get_federation_token(self) -> ActionResult:
        """Returns temporary keys of a federated user."""
        duration_s = self._get_int_param("DurationSeconds", SESSION_S)
        session = Session(self._user, duration_s, federated=self._get_param("Name"))
        user = {"FederatedUserId": session.user_id, "Arn": session.arn}
        return ActionResult({"Credentials": session, "FederatedUser": user, "PackedPolicySize": 6})

    def assume_role(self) -> ActionResult:
        """As in moto, but only of a role that exists.

        The keys are valid for at most its MaxSessionDuration, or for one hour if the caller is a role.
        """
        arn = self._get_param("RoleArn")
        role = _find_role(arn)
        if role is None:
            name = name_caller(self.get_access_key())
            message = f"User: {name} is not authorized to perform: sts:AssumeRole on resource: {arn}"
            raise STSClientError("AccessDenied", message)
        limit_s = int(role.max_session_duration or ROLE_SESSION_S)
        caller = _sts().get_assumed_role_from_access_key(self.get_access_key())
        if caller is not None and not isinstance(caller, Session):
            limit_s = min(limit_s, ROLE_SESSION_S)
        if not MIN_SESSION_S <= self._get_int_param("DurationSeconds", ROLE_SESSION_S) <= limit_s:
            raise STSValidationError(
                f"The requested DurationSeconds is not from {MIN_SESSION_S} to {limit_s}, the MaxSessionDuration here."
            )
        return super().assume_role()


def install_principals(access_key_id: str, secret_access_key: str) -> None:
    """Creates the sandbox's own user."""
    iam_backends.backend = SandboxIamBackend
    aws.aws_managed_policies_data = iam_models.aws_managed_policies_data = ""  # type: ignore[attr-defined]
    sts_urls.url_paths = {"{0}/$": SandboxStsResponse.dispatch}
    user = _iam().create_user("us-east-1", OPERATOR)  # IAM is global; moto derives the partition from this name
    key = user.create_access_key("AKIA")
    key.access_key_id, key.secret_access_key = access_key_id, secret_access_key


def _iam() -> IAMBackend:
    return iam_backends[DEFAULT_ACCOUNT_ID][PARTITION]


def _sts() -> STSBackend:
    return sts_backends[DEFAULT_ACCOUNT_ID][PARTITION]


def find_secret(access_key_id: str) -> tuple[str, str | None]:
    """Returns the secret of an access key, and its session's token or None.

    Raises RefusedError for an unknown or expired key.
    """
    keys = _sts().get_assumed_role_from_access_key(access_key_id)
    if keys is not None:
        if utcnow() >= keys.expiration:
            raise RefusedError(EXPIRED)
        return str(keys.secret_access_key), str(keys.session_token)
    user = _find_user(access_key_id)
    if user is None:
        raise RefusedError(UNKNOWN_KEY)
    return next((str(key.secret_access_key), None) for key in user.access_keys if key.access_key_id == access_key_id)


# list() copies atomically; other threads may add users and roles.


def _find_user(access_key_id: str) -> User | None:
    users: list[User] = list(_iam().users.values())
    return next((one for one in users if any(key.access_key_id == access_key_id for key in one.access_keys)), None)


def _find_role(arn: str) -> Role | None:
    roles: list[Role] = list(_iam().get_roles())
    return next((one for one in roles if one.arn == arn), None)


def name_caller(access_key_id: str | None) -> str:
    """Returns the ARN of an access key's owner, for messages and the API log."""
    key = access_key_id or ""
    found = _sts().get_assumed_role_from_access_key(key) or _find_user(key)
    return str(found.arn) if found else ANYBODY
