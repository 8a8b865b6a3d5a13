"""The callers and their permissions: the sandbox's own user, users and roles created in it, and their sessions.

All are in moto's IAM and STS, so changes through IAM's API take effect immediately. GetSessionToken and
GetFederationToken replace those of moto, which return the same keys to all callers and do not store them.
"""

import datetime as dt
import json
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.iam.models import IAMBackend, Policy, Role, User, iam_backends
from moto.sts import urls as sts_urls
from moto.sts.exceptions import STSClientError, STSValidationError
from moto.sts.models import AssumedRole, STSBackend, sts_backends
from moto.sts.responses import TokenResponse
from moto.sts.utils import random_session_token

from sandbox.api.refusals import EXPIRED, NOT_FOR_IAM, UNKNOWN_KEY, RefusedError, deny, forbid
from sandbox.iam import policies
from sandbox.iam.policies import Ask, PolicyError, Verdict, decide, matches, parse_policy

Trust = Literal["named", "account", "nobody", "denied"]
"""named: the policy names the caller, who needs no other permission. account: the policy names the account, so the
caller's own policies decide."""

ACTION = "sts:AssumeRole"
ELEMENTS = {"Sid", "Effect", "Principal", "Action"}

PARTITION = "aws"
OPERATOR = "operator"
OPERATOR_POLICY = "sandbox"
ALLOW_ALL = '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'
ANYBODY = "anonymous"
SESSION_S = 12 * 3600
# https://docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html
MIN_SESSION_S = 900
MAX_FEDERATION_S = 36 * 3600
ROLE_SESSION_S = 3600
"""The default MaxSessionDuration of a role, and the limit if a role assumes a role."""
MAX_SESSION_POLICY = 2048
FEDERATED_NAME = r"[\w+=,.@-]{2,32}"
OF_USERS_ALONE = ("GetSessionToken", "GetFederationToken")


def read_trust(document: str, *, names: AbstractSet[str]) -> Trust:
    """Returns how a role's trust policy trusts a caller.

    names: the caller's ARNs, which are the user's ARN, or those of the session and its role.

    Raises PolicyError for unsupported elements, such as conditions.
    """
    try:
        statements = json.loads(document).get("Statement", [])
    except (ValueError, AttributeError) as error:
        raise PolicyError(f"the trust policy is not a policy document: {error}") from None
    found: set[Trust] = set()
    for statement in [statements] if isinstance(statements, dict) else statements:
        unknown = statement.keys() - ELEMENTS
        if unknown:
            raise PolicyError(f'the trust policy: "{min(unknown)}" is not supported')
        if any(matches(action.lower(), ACTION.lower()) for action in _words(statement.get("Action", []))):
            trust = _find_trust(statement.get("Principal"), names)
            found.add("denied" if statement.get("Effect") == "Deny" and trust != "nobody" else trust)
    order: tuple[Trust, ...] = ("denied", "named", "account")
    return next((trust for trust in order if trust in found), "nobody")


def _find_trust(principal: Any, names: AbstractSet[str]) -> Trust:
    if principal == "*":
        return "named"
    trusted = set(_words(principal.get("AWS", []))) if isinstance(principal, dict) else set()
    if trusted & {"*", *names}:
        return "named"
    return "account" if trusted & {DEFAULT_ACCOUNT_ID, f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:root"} else "nobody"


def _words(found: Any) -> list[str]:
    return [str(word) for word in found] if isinstance(found, list) else [str(found)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """A caller.

    grants: groups of policies, all of which must allow an action. The first group grants the rights; the others limit
    them. names: the ARNs by which a trust policy can name the caller.
    """

    arn: str
    grants: tuple[tuple[policies.Policy, ...], ...]
    names: frozenset[str] = frozenset()

    @property
    def may_do_all(self) -> bool:
        """Whether all calls are allowed."""
        return all(len(group) == 1 and group[0].allows_everything for group in self.grants)

    def decide(self, ask: Ask, *, trust: Trust = "account") -> Verdict:
        """Returns the verdict on a permission. trust: from the resource's own policy, if it has one."""
        if trust in ("nobody", "denied"):
            return "denied" if trust == "denied" else "unmentioned"
        rights, *limits = [decide(group, ask) for group in self.grants]
        if trust == "named" and rights == "unmentioned":
            rights = "allowed"
        verdicts: set[Verdict] = {rights, *limits}
        if "denied" in verdicts:
            return "denied"
        return "allowed" if verdicts == {"allowed"} else "unmentioned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Temporary keys of a user. The first four fields are as in STS's response.

    expiration: UTC, naive, as in moto. owner: the user's access key id. federated: the name from GetFederationToken, or
    None for GetSessionToken. policy: limits the session further.
    """

    access_key_id: str
    secret_access_key: str
    session_token: str
    expiration: dt.datetime
    owner: str
    federated: str | None = None
    policy: str | None = None

    @property
    def federated_arn(self) -> str:
        """The ARN of a federated user."""
        return f"arn:{PARTITION}:sts::{DEFAULT_ACCOUNT_ID}:federated-user/{self.federated}"


class SandboxStsBackend(STSBackend):
    """moto's STS, which also stores sessions."""

    _url_module = sts_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.sessions: dict[str, Session] = {}

    def open_session(
        self, owner: str, duration_s: int, *, federated: str | None = None, policy: str | None = None
    ) -> Session:
        """Creates temporary keys for a user."""
        key = _iam().create_temp_access_key()
        session = Session(
            access_key_id=key.access_key_id,
            secret_access_key=key.secret_access_key,
            session_token=random_session_token(),
            expiration=utcnow() + dt.timedelta(seconds=duration_s),
            owner=owner,
            federated=federated,
            policy=policy,
        )
        self.sessions[key.access_key_id] = session
        return session

    def get_caller_identity(self, access_key_id: str, region: str) -> tuple[str, str, str]:
        """As in moto, but a session has its user's identity, and a federated user has its own identity."""
        session = self.sessions.get(access_key_id)
        if session and session.federated:
            return f"{DEFAULT_ACCOUNT_ID}:{session.federated}", session.federated_arn, DEFAULT_ACCOUNT_ID
        found: tuple[str, str, str] = super().get_caller_identity(session.owner if session else access_key_id, region)
        return found


class SandboxStsResponse(TokenResponse):
    """moto's STS actions, with new keys for each session."""

    def get_session_token(self) -> ActionResult:
        """Returns temporary keys with the caller's permissions."""
        duration_s = self._get_int_param("DurationSeconds", SESSION_S)
        return ActionResult({"Credentials": _sts().open_session(self.get_access_key(), duration_s)})

    def get_federation_token(self) -> ActionResult:
        """Returns temporary keys with the permissions that both the caller's policies and the given policy grant."""
        name, policy = self._get_param("Name") or "", self._get_param("Policy")
        if re.fullmatch(FEDERATED_NAME, name, re.ASCII) is None:
            raise STSValidationError(f"Value '{name}' at 'name' failed to satisfy constraint: {FEDERATED_NAME}")
        duration_s = self._get_int_param("DurationSeconds", SESSION_S)
        _check_duration(duration_s, MAX_FEDERATION_S)
        _check_policy(policy)
        session = _sts().open_session(self.get_access_key(), duration_s, federated=name, policy=policy)
        user = {"FederatedUserId": f"{DEFAULT_ACCOUNT_ID}:{name}", "Arn": session.federated_arn}
        return ActionResult({"Credentials": session, "FederatedUser": user, "PackedPolicySize": 6})

    def assume_role(self) -> ActionResult:
        """As in moto, for at most the role's MaxSessionDuration, or one hour if a role assumes a role."""
        _check_policy(self._get_param("Policy"))
        role = _find_role(self._get_param("RoleArn"))
        limit_s = int((role and role.max_session_duration) or ROLE_SESSION_S)
        if _sts().get_assumed_role_from_access_key(self.get_access_key()) is not None:
            limit_s = min(limit_s, ROLE_SESSION_S)
        _check_duration(self._get_int_param("DurationSeconds", ROLE_SESSION_S), limit_s)
        return super().assume_role()


def _check_duration(duration_s: int, limit_s: int) -> None:
    if not MIN_SESSION_S <= duration_s <= limit_s:
        raise STSValidationError(
            f"The requested DurationSeconds is not from {MIN_SESSION_S} to {limit_s}, the MaxSessionDuration here."
        )


def _check_policy(policy: str | None) -> None:
    if policy is None:
        return
    if len(policy) > MAX_SESSION_POLICY:
        raise STSValidationError(
            f"Value at 'policy' failed to satisfy constraint: Member must have length less than or equal to "
            f"{MAX_SESSION_POLICY}"
        )
    try:
        parse_policy(policy)
    except PolicyError as error:
        raise STSClientError("MalformedPolicyDocument", str(error)) from error


def install_principals(access_key_id: str, secret_access_key: str, policy: str) -> None:
    """Creates the sandbox's own user. policy: the IAM policy document of the user, or "" to allow everything."""
    sts_backends.backend = SandboxStsBackend
    sts_urls.url_paths = {"{0}/$": SandboxStsResponse.dispatch}
    user = _iam().create_user("us-east-1", OPERATOR)  # IAM is global; moto derives the partition from this name
    key = user.create_access_key("AKIA")
    key.access_key_id, key.secret_access_key = access_key_id, secret_access_key
    user.put_policy(OPERATOR_POLICY, policy or ALLOW_ALL)


def _iam() -> IAMBackend:
    return iam_backends[DEFAULT_ACCOUNT_ID][PARTITION]


def _sts() -> SandboxStsBackend:
    backend = sts_backends[DEFAULT_ACCOUNT_ID][PARTITION]
    assert isinstance(backend, SandboxStsBackend)  # noqa: S101 -- install_principals installed it
    return backend


def find_secret(access_key_id: str) -> tuple[str, str | None]:
    """Returns the secret of an access key, and its session's token or None. Raises RefusedError for an unknown key."""
    role = _sts().get_assumed_role_from_access_key(access_key_id)
    keys = role or _sts().sessions.get(access_key_id)
    if keys is not None:
        return str(keys.secret_access_key), str(keys.session_token)
    user = _find_user(access_key_id)
    if user is None:
        raise RefusedError(UNKNOWN_KEY)
    return next((str(key.secret_access_key), None) for key in user.access_keys if key.access_key_id == access_key_id)


def find_principal(access_key_id: str) -> Principal:
    """Returns the owner of an access key.

    Raises RefusedError for an unknown or expired key, and PolicyError for a policy that is not supported.
    """
    role = _sts().get_assumed_role_from_access_key(access_key_id)
    if role is not None:
        _check_not_expired(role)
        names = frozenset({role.arn, role.role_arn})
        return Principal(arn=role.arn, grants=_grants_of_session(role), names=names)
    session = _sts().sessions.get(access_key_id)
    if session is not None:
        _check_not_expired(session)
        access_key_id = session.owner
    user = _find_user(access_key_id)
    if user is None:
        raise RefusedError(UNKNOWN_KEY)
    principal = _describe_user(user)
    if session is None or session.federated is None:
        return principal
    limits = _parse_all([session.policy]) if session.policy else ()  # without a policy, no action is allowed
    return Principal(arn=session.federated_arn, grants=(*principal.grants, limits))


# list() copies atomically; other threads may add users and roles.


def _find_user(access_key_id: str) -> User | None:
    users: list[User] = list(_iam().users.values())
    return next((one for one in users if any(key.access_key_id == access_key_id for key in one.access_keys)), None)


def _find_role(arn: str) -> Role | None:
    roles: list[Role] = list(_iam().get_roles())
    return next((one for one in roles if one.arn == arn), None)


def _describe_user(user: User) -> Principal:
    grants = _policies_of(user, *_iam().get_groups_for_user(user.name))
    return Principal(arn=user.arn, grants=(grants,), names=frozenset({user.arn}))


def check_session(access_key_id: str, service: str, action: str) -> None:
    """Raises RefusedError for calls that temporary keys cannot make, regardless of policies.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_sts-comparison.html
    """
    session = _sts().sessions.get(access_key_id)
    if session is None and _sts().get_assumed_role_from_access_key(access_key_id) is None:
        return
    if service == "sts" and action in OF_USERS_ALONE:
        raise RefusedError(forbid(f"Cannot call {action} with session credentials"))
    if service == "iam" and session is not None:
        raise RefusedError(NOT_FOR_IAM)
    if service == "sts" and session is not None and session.federated and action != "GetCallerIdentity":
        raise RefusedError(deny("sts", session.federated_arn, f"sts:{action}"))


def find_trust(principal: Principal, role_arn: str) -> Trust:
    """Returns how a role trusts a caller. Raises PolicyError if its trust policy is not supported."""
    role = _find_role(role_arn)
    return read_trust(role.assume_role_policy_document, names=principal.names) if role else "nobody"


def name_caller(access_key_id: str | None) -> str:
    """Returns the ARN of an access key's owner, for messages and the API log."""
    session = _sts().sessions.get(access_key_id or "")
    if session and session.federated:
        return session.federated_arn
    key = session.owner if session else access_key_id
    role = _sts().get_assumed_role_from_access_key(key or "")
    user = _find_user(key or "")
    return str(role.arn) if role else str(user.arn) if user else ANYBODY


def _check_not_expired(keys: AssumedRole | Session) -> None:
    if utcnow() >= keys.expiration:
        raise RefusedError(EXPIRED)


def _grants_of_session(assumed: AssumedRole) -> tuple[tuple[policies.Policy, ...], ...]:
    """Returns the groups of the role's policies, its permissions boundary and the session's policy."""
    role = _find_role(assumed.role_arn)
    if role is None:  # deleted: its sessions have no permissions
        return ((),)
    limits: list[Any] = [_iam().get_policy(role.permissions_boundary_arn)] if role.permissions_boundary_arn else []
    limits += [assumed.policy] if assumed.policy else []
    return (_policies_of(role), *(_parse_all([limit]) for limit in limits))


def _policies_of(*holders: Any) -> tuple[policies.Policy, ...]:
    """Returns the inline and managed policies of users, groups or roles."""
    return _parse_all(
        policy for holder in holders for policy in (*holder.policies.values(), *holder.managed_policies.values())
    )


def _parse_all(found: Iterable[Any]) -> tuple[policies.Policy, ...]:
    return tuple(parse_policy(_text_of(one)) for one in found)


def _text_of(found: Any) -> str:
    """Returns the document of a managed or inline policy."""
    if isinstance(found, Policy):
        return str(next(version.document for version in found.versions if version.is_default))
    return str(found)
