"""Asks IAM what a caller's policies allow, for what EC2's dry runs cannot tell.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from provision.side_by_side import reading_pool

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_iam.type_defs import ContextEntryTypeDef, EvaluationResultTypeDef

Verdict = Literal["allowed", "missing", "unknown"]

_USER = re.compile(r"arn:[^:]+:iam::\d+:user/.+")
_SESSION = re.compile(r"arn:(?P<partition>[^:]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """May the caller do this? action: such as iam:CreateRole; resource: an ARN; context: values of condition keys."""

    action: str
    resource: str
    context: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def simulate(iam: IAMClient, questions: Sequence[Question], *, owner: str) -> dict[str, Verdict]:
    """What IAM says of each action; `unknown` for all where the caller may not ask, or is nobody who has policies.

    owner: the caller's ARN, as STS says it.
    """
    unknown: dict[str, Verdict] = {question.action: "unknown" for question in questions}
    principal = _find_principal(iam, owner) if questions else None
    if principal is None:
        return unknown
    try:
        # Whoever may ask the first may ask them all; whoever may not is not refused a dozen times.
        first = _ask(iam, questions[0], principal)
        with reading_pool() as pool:
            others = [pool.submit(_ask, iam, question, principal) for question in questions[1:]]
        verdicts = [first, *(other.result() for other in others)]
    except (ClientError, NoConnectionError, HTTPClientError):
        return unknown
    return {question.action: verdict for question, verdict in zip(questions, verdicts, strict=True)}


def read_verdict(result: EvaluationResultTypeDef) -> Verdict:
    """What one evaluation says. Pure.

    A policy that asks for condition keys that were not given may allow it after all; an explicit denial is one.
    """
    if result["EvalDecision"] == "allowed":
        return "allowed"
    lacking = [*result.get("MissingContextValues", [])]
    for specific in result.get("ResourceSpecificResults", []):
        lacking += specific.get("MissingContextValues", [])
    return "unknown" if lacking and result["EvalDecision"] != "explicitDeny" else "missing"


def _find_principal(iam: IAMClient, owner: str) -> str | None:
    """The ARN of the user or role whose policies the caller has; None for others, such as the account's root."""
    if _USER.fullmatch(owner):
        return owner
    session = _SESSION.fullmatch(owner)
    if session is None:
        return None
    try:
        return iam.get_role(RoleName=session["role"])["Role"]["Arn"]
    except (ClientError, NoConnectionError, HTTPClientError):
        # A session's ARN lacks the role's path; most roles have none.
        return f"arn:{session['partition']}:iam::{session['account']}:role/{session['role']}"


def _ask(iam: IAMClient, question: Question, principal: str) -> Verdict:
    context: list[ContextEntryTypeDef] = [
        {"ContextKeyName": key, "ContextKeyValues": list(values), "ContextKeyType": _key_type(key)}
        for key, values in question.context.items()
    ]
    answer = iam.simulate_principal_policy(
        PolicySourceArn=principal,
        ActionNames=[question.action],
        ResourceArns=[question.resource],
        ContextEntries=context,
    )
    return read_verdict(answer["EvaluationResults"][0])


def _key_type(key: str) -> Literal["string", "stringList"]:
    return "stringList" if key == "aws:TagKeys" else "string"
