"""Who may assume a role: what its trust policy says of a caller. Pure: no AWS, no moto.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html
"""

import json
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from sandbox.policies import PolicyError, matches

Trust = Literal["named", "account", "nobody", "denied"]
"""named: the policy names the caller, who needs no permission of their own. account: it leaves that to the policies of
the account's users and roles."""

ACTION = "sts:AssumeRole"
ELEMENTS = {"Sid", "Effect", "Principal", "Action"}


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
