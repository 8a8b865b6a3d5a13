"""Who calls, and what they may do: the sandbox's own user, users and roles made in it, and sessions of theirs.

All of it is in moto's IAM and STS, so what IAM's calls change there counts from then on, as on AWS. Only one thing is
not moto's: GetSessionToken, whose keys moto gives out to everybody alike and does not remember.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.iam.models import AccessKey, IAMBackend, Policy, Role, User, iam_backends
from moto.sts import urls as sts_urls
from moto.sts.models import AssumedRole, STSBackend, sts_backends
from moto.sts.responses import TokenResponse
from moto.sts.utils import random_session_token

from sandbox import policies
from sandbox.policies import Ask, Verdict, decide, parse_policy
from sandbox.refusals import Refusal, RefusedError

PARTITION = "aws"
OPERATOR = "operator"
OPERATOR_POLICY = "sandbox"
ALLOW_ALL = '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'
ANYBODY = "anonymous"
SESSION_S = 12 * 3600

UNKNOWN_KEY = Refusal(
    status="403 Forbidden",
    code="AuthFailure",
    query_code="InvalidClientTokenId",
    json_code="UnrecognizedClientException",
    s3_code="InvalidAccessKeyId",
    message="The access key is none of this sandbox's: cluster sandbox env shows what leads to it.",
)
NO_KEY = Refusal(
    status="403 Forbidden",
    code="AuthFailure",
    query_code="MissingAuthenticationToken",
    json_code="MissingAuthenticationTokenException",
    s3_code="AccessDenied",
    message="The call is not signed, and the sandbox answers nobody whom it does not know.",
)
EXPIRED = Refusal(
    status="403 Forbidden",
    code="RequestExpired",
    query_code="ExpiredToken",
    json_code="ExpiredTokenException",
    s3_code="ExpiredToken",
    message="The security token included in the request is expired",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """A caller. grants: groups of policies, each of which has to allow what is done (rights, and limits to them)."""

    arn: str
    grants: tuple[tuple[policies.Policy, ...], ...]

    @property
    def may_do_all(self) -> bool:
        """Whether there is nothing to check."""
        return all(len(group) == 1 and group[0].allows_everything for group in self.grants)

    def decide(self, ask: Ask) -> Verdict:
        """What they together say of a permission."""
        verdicts: set[Verdict] = {decide(group, ask) for group in self.grants}
        if "denied" in verdicts:
            return "denied"
        return "allowed" if verdicts == {"allowed"} else "unmentioned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Temporary keys of a user's. `owner`: the user's access key id. `ends`: UTC, as moto counts it."""

    owner: str
    ends: dt.datetime


class SandboxStsBackend(STSBackend):
    """moto's, which remembers the sessions that it gave out."""

    _url_module = sts_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.sessions: dict[str, Session] = {}

    def open_session(self, owner: str, duration_s: int) -> tuple[AccessKey, Session]:
        """Keys of a user's for some time."""
        key = _iam().create_temp_access_key()
        session = Session(owner=owner, ends=utcnow() + dt.timedelta(seconds=duration_s))
        self.sessions[key.access_key_id] = session
        return key, session

    def get_caller_identity(self, access_key_id: str, region: str) -> tuple[str, str, str]:
        """As moto's; a session is its user's."""
        session = self.sessions.get(access_key_id)
        found: tuple[str, str, str] = super().get_caller_identity(session.owner if session else access_key_id, region)
        return found


class SandboxStsResponse(TokenResponse):
    """moto's actions, with keys of their own for each session."""

    def get_session_token(self) -> ActionResult:
        """Temporary keys with the rights of the user that asks."""
        key, session = _sts().open_session(self.get_access_key(), self._get_int_param("DurationSeconds", SESSION_S))
        credentials = {
            "AccessKeyId": key.access_key_id,
            "SecretAccessKey": key.secret_access_key,
            "SessionToken": random_session_token(),
            "Expiration": session.ends,
        }
        return ActionResult({"Credentials": credentials})


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
        return Principal(arn=role.arn, grants=_grants_of_session(role))
    if session := _sts().sessions.get(access_key_id):
        _check_end(session.ends)
        access_key_id = session.owner
    user = _find_user(access_key_id)
    if user is None:
        raise RefusedError(UNKNOWN_KEY)
    return _describe_user(user)


def find_by_arn(arn: str) -> Principal | None:
    """A user or a role. Raises PolicyError when one of their policies is not understood."""
    for user in list(_iam().users.values()):
        if user.arn == arn:
            return _describe_user(user)
    found = _find_role(arn)
    return Principal(arn=arn, grants=_grants_of_role(found)) if found else None


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
    return Principal(arn=user.arn, grants=(_parse_all(found),))


def is_session(access_key_id: str) -> bool:
    """Whether keys are temporary: STS makes no sessions of sessions."""
    return access_key_id in _sts().sessions or _sts().get_assumed_role_from_access_key(access_key_id) is not None


def name_caller(access_key_id: str | None) -> str:
    """The ARN of whoever has an access key, for messages."""
    session = _sts().sessions.get(access_key_id or "")
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
