"""Who calls, and what they may do: the sandbox's own user, users and roles made in it, and sessions of theirs.

All of it is in moto's IAM and STS, so what IAM's calls change there counts from then on, as on AWS. Not moto's are
GetSessionToken and GetFederationToken, whose keys moto gives out to everybody alike and does not remember.
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
from moto.iam.models import AccessKey, IAMBackend, Policy, Role, User, iam_backends
from moto.sts import urls as sts_urls
from moto.sts.exceptions import STSClientError, STSValidationError
from moto.sts.models import AssumedRole, STSBackend, sts_backends
from moto.sts.responses import TokenResponse
from moto.sts.utils import random_session_token

from sandbox.api.refusals import EXPIRED, NO_KEY, NOT_FOR_IAM, UNKNOWN_KEY, RefusedError, deny, forbid
from sandbox.iam import policies
from sandbox.iam.policies import Ask, PolicyError, Verdict, decide, matches, parse_policy

Trust = Literal["named", "account", "nobody", "denied"]
"""named: the policy names the caller, who needs no permission of their own. account: it leaves that to the policies of
the account's users and roles."""

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
"""Of a role that says nothing else, and at most of one that is assumed with the keys of another role."""
MAX_SESSION_POLICY = 2048
FEDERATED_NAME = r"[\w+=,.@-]{2,32}"
OF_USERS_ALONE = ("GetSessionToken", "GetFederationToken")


def read_trust(document: str, *, names: AbstractSet[str], account: str) -> Trust:
    """What a role's trust policy says of a caller.

    names: the ARNs of the caller: a user's, or a session's and its role's. Raises PolicyError for what is not
    understood, such as conditions.
    """
    found: set[Trust] = set()
    for statement in _statements(document):
        unknown = statement.keys() - ELEMENTS
        if unknown:
            raise PolicyError(f'the trust policy: "{min(unknown)}" is not understood')
        actions = statement.get("Action", [])
        if not any(matches(one.lower(), ACTION.lower()) for one in _words(actions)):
            continue
        trust = _find_trust(statement.get("Principal"), names=names, account=account)
        found.add("denied" if statement.get("Effect") == "Deny" and trust != "nobody" else trust)
    order: tuple[Trust, ...] = ("denied", "named", "account")
    return next((trust for trust in order if trust in found), "nobody")


def _statements(document: str) -> list[dict[str, Any]]:
    try:
        statements = json.loads(document).get("Statement", [])
    except (ValueError, AttributeError) as error:
        raise PolicyError(f"the trust policy is no policy document: {error}") from None
    return [statements] if isinstance(statements, dict) else list(statements)


def _find_trust(principal: Any, *, names: AbstractSet[str], account: str) -> Trust:
    if principal == "*":
        return "named"
    trusted = _words(principal.get("AWS", [])) if isinstance(principal, dict) else []
    if "*" in trusted or names & set(trusted):
        return "named"
    return "account" if {account, f"arn:aws:iam::{account}:root"} & set(trusted) else "nobody"


def _words(found: Any) -> list[str]:
    return [str(word) for word in found] if isinstance(found, list) else [str(found)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """A caller.

    grants: groups of policies, each of which has to allow what is done: first the rights, then what limits them.
    names: the ARNs by which a trust policy may name the caller.
    """

    arn: str
    grants: tuple[tuple[policies.Policy, ...], ...]
    names: frozenset[str] = frozenset()

    @property
    def may_do_all(self) -> bool:
        """Whether there is nothing to check."""
        return all(len(group) == 1 and group[0].allows_everything for group in self.grants)

    def decide(self, ask: Ask, *, trust: Trust = "account") -> Verdict:
        """What they together say of a permission. trust: what the resource's own policy says, where it has one."""
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
    """Temporary keys of a user's. `owner`: the user's access key id. `ends`: UTC, as moto counts it.

    federated: the name that GetFederationToken was given; None for GetSessionToken. policy: what limits it.
    """

    owner: str
    ends: dt.datetime
    federated: str | None = None
    policy: str | None = None

    @property
    def federated_arn(self) -> str:
        """Of a federated user."""
        return f"arn:{PARTITION}:sts::{DEFAULT_ACCOUNT_ID}:federated-user/{self.federated}"


class SandboxStsBackend(STSBackend):
    """moto's, which remembers the sessions that it gave out."""

    _url_module = sts_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.sessions: dict[str, Session] = {}

    def open_session(
        self, owner: str, duration_s: int, *, federated: str | None = None, policy: str | None = None
    ) -> tuple[AccessKey, Session]:
        """Keys of a user's for some time."""
        key = _iam().create_temp_access_key()
        ends = utcnow() + dt.timedelta(seconds=duration_s)
        session = Session(owner=owner, ends=ends, federated=federated, policy=policy)
        self.sessions[key.access_key_id] = session
        return key, session

    def get_caller_identity(self, access_key_id: str, region: str) -> tuple[str, str, str]:
        """As moto's; a session is its user's, and a federated user is one of their own."""
        session = self.sessions.get(access_key_id)
        if session and session.federated:
            return f"{DEFAULT_ACCOUNT_ID}:{session.federated}", session.federated_arn, DEFAULT_ACCOUNT_ID
        found: tuple[str, str, str] = super().get_caller_identity(session.owner if session else access_key_id, region)
        return found


class SandboxStsResponse(TokenResponse):
    """moto's actions, with keys of their own for each session."""

    def get_session_token(self) -> ActionResult:
        """Temporary keys with the rights of the user that asks."""
        made = _sts().open_session(self.get_access_key(), self._get_int_param("DurationSeconds", SESSION_S))
        return ActionResult({"Credentials": _render_keys(*made)})

    def get_federation_token(self) -> ActionResult:
        """Temporary keys with those rights of the user that asks which the given policy allows, too."""
        name, policy = self._get_param("Name") or "", self._get_param("Policy")
        if re.fullmatch(FEDERATED_NAME, name, re.ASCII) is None:
            raise STSValidationError(f"Value '{name}' at 'name' failed to satisfy constraint: {FEDERATED_NAME}")
        duration_s = self._get_int_param("DurationSeconds", SESSION_S)
        _check_duration(duration_s, MAX_FEDERATION_S)
        _check_policy(policy)
        made = _sts().open_session(self.get_access_key(), duration_s, federated=name, policy=policy)
        user = {"FederatedUserId": f"{DEFAULT_ACCOUNT_ID}:{name}", "Arn": made[1].federated_arn}
        return ActionResult({"Credentials": _render_keys(*made), "FederatedUser": user, "PackedPolicySize": 6})

    def assume_role(self) -> ActionResult:
        """As moto's, for no longer than the role allows; and for an hour where a role assumes a role."""
        _check_policy(self._get_param("Policy"))
        role = _find_role(self._get_param("RoleArn"))
        limit_s = int((role and role.max_session_duration) or ROLE_SESSION_S)
        if _sts().get_assumed_role_from_access_key(self.get_access_key()) is not None:
            limit_s = min(limit_s, ROLE_SESSION_S)
        _check_duration(self._get_int_param("DurationSeconds", ROLE_SESSION_S), limit_s)
        return super().assume_role()


def _render_keys(key: AccessKey, session: Session) -> dict[str, Any]:
    return {
        "AccessKeyId": key.access_key_id,
        "SecretAccessKey": key.secret_access_key,
        "SessionToken": random_session_token(),
        "Expiration": session.ends,
    }


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
    """Makes the user whose keys the sandbox's owner has, before the first call.

    policy: the IAM policy document that limits them; "" for none.
    """
    sts_backends.backend = SandboxStsBackend
    sts_urls.url_paths = {"{0}/$": SandboxStsResponse.dispatch}
    user = _iam().create_user("us-east-1", OPERATOR)  # IAM's users are of no region; the name tells moto the partition
    key = user.create_access_key("AKIA")
    key.access_key_id, key.secret_access_key = access_key_id, secret_access_key
    user.put_policy(OPERATOR_POLICY, policy or ALLOW_ALL)


def _iam() -> IAMBackend:
    return iam_backends[DEFAULT_ACCOUNT_ID][PARTITION]


def _sts() -> SandboxStsBackend:
    backend = sts_backends[DEFAULT_ACCOUNT_ID][PARTITION]
    assert isinstance(backend, SandboxStsBackend)  # noqa: S101 -- install_principals put it there
    return backend


def find_principal(access_key_id: str | None) -> Principal:
    """Who has an access key. Raises RefusedError, and PolicyError when one of their policies is not understood."""
    if access_key_id is None:
        raise RefusedError(NO_KEY)
    role = _sts().get_assumed_role_from_access_key(access_key_id)
    if role is not None:
        _check_end(role.expiration)
        names = frozenset({role.arn, role.role_arn})
        return Principal(arn=role.arn, grants=_grants_of_session(role), names=names)
    session = _sts().sessions.get(access_key_id)
    if session is not None:
        _check_end(session.ends)
        access_key_id = session.owner
    user = _find_user(access_key_id)
    if user is None:
        raise RefusedError(UNKNOWN_KEY)
    principal = _describe_user(user)
    if session is None or session.federated is None:
        return principal
    limits = _parse_all([session.policy]) if session.policy else ()  # without a policy it may do nothing
    return Principal(arn=session.federated_arn, grants=(*principal.grants, limits))


# Other threads may add users and roles meanwhile: a list of them is made in one step.


def _find_user(access_key_id: str) -> User | None:
    users: list[User] = list(_iam().users.values())
    return next((one for one in users if any(key.access_key_id == access_key_id for key in one.access_keys)), None)


def _find_role(arn: str) -> Role | None:
    roles: list[Role] = list(_iam().get_roles())
    return next((one for one in roles if one.arn == arn), None)


def _describe_user(user: User) -> Principal:
    holders: list[Any] = [user, *_iam().get_groups_for_user(user.name)]
    found: list[Any] = []
    for holder in holders:
        found += [*holder.policies.values(), *holder.managed_policies.values()]
    return Principal(arn=user.arn, grants=(_parse_all(found),), names=frozenset({user.arn}))


def check_session(access_key_id: str, service: str, action: str) -> None:
    """Raises RefusedError for what temporary keys are not good for, whatever the policies say.

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
    """What a role's trust policy says of a caller. Raises PolicyError when it is not understood."""
    role = _find_role(role_arn)
    if role is None:
        return "nobody"
    return read_trust(role.assume_role_policy_document, names=principal.names, account=DEFAULT_ACCOUNT_ID)


def name_caller(access_key_id: str | None) -> str:
    """The ARN of whoever has an access key, for messages."""
    session = _sts().sessions.get(access_key_id or "")
    if session and session.federated:
        return session.federated_arn
    key = session.owner if session else access_key_id
    role = _sts().get_assumed_role_from_access_key(key or "")
    user = _find_user(key or "")
    return str(role.arn) if role else str(user.arn) if user else ANYBODY


def _check_end(ends: dt.datetime) -> None:
    if utcnow() >= ends:
        raise RefusedError(EXPIRED)


def _grants_of_session(assumed: AssumedRole) -> tuple[tuple[policies.Policy, ...], ...]:
    """The role's, and what limits the session."""
    role = _find_role(assumed.role_arn)
    if role is None:  # deleted: who still has its keys may do nothing with them
        return ((),)
    session = (_parse_all([assumed.policy]),) if assumed.policy else ()
    return (*_grants_of_role(role), *session)


def _grants_of_role(role: Role) -> tuple[tuple[policies.Policy, ...], ...]:
    """A role's own policies, and its permissions boundary."""
    own = _parse_all([*role.policies.values(), *role.managed_policies.values()])
    if not role.permissions_boundary_arn:
        return (own,)
    return (own, _parse_all([_iam().get_policy(role.permissions_boundary_arn)]))


def _parse_all(found: Iterable[Any]) -> tuple[policies.Policy, ...]:
    return tuple(parse_policy(_text_of(one)) for one in found)


def _text_of(found: Any) -> str:
    """The document of a policy, managed or inline."""
    if isinstance(found, Policy):
        return str(next(version.document for version in found.versions if version.is_default))
    return str(found)
