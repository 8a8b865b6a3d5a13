"""The part of IAM's policy language that this project's policies use, and whether they allow a request.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

import json
import operator
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

Context = Mapping[str, tuple[str, ...]]
"""The values of a request's condition keys, by the key in lower case."""


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    words = {"*": ".*", "?": "."}
    return re.compile("".join(words.get(letter) or re.escape(letter) for letter in pattern), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches a pattern with * and ?."""
    return _compile(pattern).fullmatch(text) is not None


OPERATORS = {"StringEquals": operator.eq, "StringLike": matches}


def allows(document: str, action: str, resource: str, context: Context) -> bool:
    """Whether a policy allows an action on a resource: an ARN, or "*" for actions without resources.

    Raises KeyError for elements and operators that are not implemented here.
    """
    return any(
        has_action(statement, action)
        and any(matches(pattern, resource) for pattern in _words(statement["Resource"]))
        and all(
            _holds(name, _words(wanted), context.get(key.lower(), ()))
            for name, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
        for statement in read_statements(document)
    )


def read_statements(document: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(document)["Statement"]
    assert {statement["Effect"] for statement in statements} <= {"Allow"}
    return statements


def has_action(statement: Mapping[str, Any], action: str) -> bool:
    return any(matches(pattern.lower(), action.lower()) for pattern in _words(statement["Action"]))


def _holds(name: str, wanted: list[str], given: tuple[str, ...]) -> bool:
    """Whether a condition holds. given: the values that the request has for its key."""
    if name == "Null":
        return wanted == ["false" if given else "true"]
    quantifier, _, compared = name.rpartition(":")
    if not given:
        return quantifier == "ForAllValues" or compared.endswith("IfExists")
    compare = OPERATORS[compared.removesuffix("IfExists")]
    return all(any(compare(pattern, value) for pattern in wanted) for value in given)


def _words(found: Any) -> list[str]:
    return found if isinstance(found, list) else [found]
