"""IAM's policy language: parses documents and evaluates requests. Pure: no AWS, no moto.

A document with unsupported elements is refused, because
ignoring them could grant a permission that the document does not grant.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Verdict = Literal["allowed", "denied", "unmentioned"]

VERSIONS = ("2012-10-17", "2008-10-17")
ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}
OPERATORS = ("StringEquals", "StringNotEquals", "StringLike", "StringNotLike", "Bool", "Null")
QUANTIFIERS = ("ForAllValues", "ForAnyValue")
IF_EXISTS = "IfExists"
MANY_VALUED = "aws:tagkeys"
KEYS = {
    MANY_VALUED, "aws:requestedregion", "aws:securetransport", "ec2:createaction", "ec2:instancemarkettype",
    "ec2:instancetype", "ec2:owner", "ec2:region", "iam:awsservicename", "iam:passedtoservice", "kms:viaservice",
    "s3:prefix",
}  # fmt: skip
TAG_KEYS = ("aws:resourcetag/", "ec2:resourcetag/", "aws:requesttag/")


class PolicyError(ValueError):
    """A policy document is invalid or not supported. The message says where and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One permission that a call needs.

    action: `service:Action`. resource: an ARN, or "*" for actions without resources.
    context: the values of condition keys, by the key in lower case.
    """

    action: str
    resource: str
    context: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One key of a Condition block. `key`: in lower case. `if_exists`: whether it also holds if the key is missing."""

    operator: str
    quantifier: str
    if_exists: bool
    key: str
    values: tuple[str, ...]

    def holds(self, context: Mapping[str, tuple[str, ...]]) -> bool:
        """Returns whether it holds for a request."""
        given = context.get(self.key, ())
        if self.operator == "Null":
            return ("false" if given else "true") in self.values
        if not given:
            missing_fits = self.operator.startswith("StringNot") and self.quantifier != "ForAnyValue"
            return self.if_exists or self.quantifier == "ForAllValues" or missing_fits
        return (any if self.quantifier == "ForAnyValue" else all)(self._accepts(value) for value in given)

    def _accepts(self, value: str) -> bool:
        if self.operator == "Bool":
            return value.lower() in self.values
        if self.operator.endswith("Like"):
            found = any(matches(pattern, value) for pattern in self.values)
        else:
            found = value in self.values
        return found is not self.operator.startswith("StringNot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One statement.

    `other_actions`: whether it has NotAction, and so applies to all actions except its own. `other_resources`: the same
    for NotResource.
    """

    allows: bool
    actions: tuple[str, ...]
    other_actions: bool
    resources: tuple[str, ...]
    other_resources: bool
    conditions: tuple[Condition, ...]

    def applies(self, ask: Ask) -> bool:
        """Returns whether its actions, resources and conditions match a request."""
        has_action = any(matches(pattern.lower(), ask.action.lower()) for pattern in self.actions)
        has_resource = any(matches(pattern, ask.resource) for pattern in self.resources)
        return (
            has_action is not self.other_actions
            and has_resource is not self.other_resources
            and all(condition.holds(ask.context) for condition in self.conditions)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A policy document."""

    statements: tuple[Statement, ...]


def decide(policies: Iterable[Policy], ask: Ask) -> Verdict:
    """Returns the verdict of all policies. A Deny takes precedence. Pure."""
    verdicts = {one.allows for policy in policies for one in policy.statements if one.applies(ask)}
    if False in verdicts:
        return "denied"
    return "allowed" if verdicts else "unmentioned"


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    words = {"*": ".*", "?": "."}
    return re.compile("".join(words.get(letter) or re.escape(letter) for letter in pattern), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Returns whether the whole text matches a pattern with * and ?. Pure."""
    return _compile(pattern).fullmatch(text) is not None


@lru_cache(maxsize=256)
def parse_policy(text: str) -> Policy:
    """Parses the policy document of a user or a role. Pure. Raises PolicyError."""
    try:
        document = json.loads(text, object_pairs_hook=_refuse_doubles)
    except json.JSONDecodeError as error:
        raise PolicyError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise PolicyError("it is not a JSON object")
    _check_names(document, {"Version", "Id", "Statement"}, "the document")
    if document.get("Version", VERSIONS[-1]) not in VERSIONS:
        raise PolicyError(f"Version: unknown version {document['Version']!r}; known: {', '.join(VERSIONS)}")
    statements = document.get("Statement")
    statements = [statements] if isinstance(statements, dict) else statements
    if not isinstance(statements, list) or not statements:
        raise PolicyError("Statement is missing or empty")
    return Policy(statements=tuple(_parse_statement(one, number) for number, one in enumerate(statements, 1)))


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises PolicyError for a repeated name, of which JSON parsers keep only the last value."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise PolicyError(f'"{name}" appears twice in one object')
        found[name] = value
    return found


def _check_names(found: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise PolicyError(f'{where}: "{name}" is not supported; known: {", ".join(sorted(known))}')


def _parse_statement(found: Any, number: int) -> Statement:
    where = f"Statement {number}"
    if not isinstance(found, dict):
        raise PolicyError(f"{where}: it is not a JSON object")
    if isinstance(found.get("Sid"), str):
        where = f"{where} ({found['Sid']})"
    _check_names(found, ELEMENTS, where)
    if found.get("Effect") not in ("Allow", "Deny"):
        raise PolicyError(f'{where}: Effect must be "Allow" or "Deny"')
    actions, other_actions = _parse_choice(found, "Action", where)
    resources, other_resources = _parse_choice(found, "Resource", where)
    for action in actions:
        if action != "*" and not re.fullmatch(r"[A-Za-z0-9-]+:[A-Za-z0-9*?]+", action):
            raise PolicyError(f'{where}: the action "{action}" does not have the form service:Action')
    for resource in resources:
        if resource != "*" and not re.fullmatch(r"arn:[^:]*:[^:]*:[^:]*:[^:]*:.+|arn:.*\*", resource, re.DOTALL):
            raise PolicyError(f'{where}: the resource "{resource}" is not an ARN')
    return Statement(
        allows=found["Effect"] == "Allow",
        actions=actions,
        other_actions=other_actions,
        resources=resources,
        other_resources=other_resources,
        conditions=tuple(_parse_conditions(found.get("Condition", {}), where)),
    )


def _parse_choice(found: Mapping[str, Any], name: str, where: str) -> tuple[tuple[str, ...], bool]:
    """Returns the value of `Action` or `NotAction` (or of another name), and whether it was the latter."""
    if (name in found) is (f"Not{name}" in found):
        raise PolicyError(f"{where}: needs either {name} or Not{name}")
    inverted = name not in found
    return _parse_words(found[f"Not{name}" if inverted else name], f"{where}: {name}"), inverted


def _parse_words(found: Any, where: str) -> tuple[str, ...]:
    words = found if isinstance(found, list) else [found]
    words = [str(word).lower() if isinstance(word, bool) else word for word in words]
    if not words or not all(isinstance(word, str) for word in words):
        raise PolicyError(f"{where}: must be a string or a list of strings")
    for word in words:
        if "${" in word:
            raise PolicyError(f'{where}: "{word}": policy variables are not supported')
    return tuple(words)


def _parse_conditions(found: Any, where: str) -> Iterable[Condition]:
    if not isinstance(found, dict):
        raise PolicyError(f"{where}: Condition is not a JSON object")
    for written, keys in found.items():
        if not isinstance(keys, dict) or not keys:
            raise PolicyError(f"{where}: {written}: no condition key")
        for key, values in keys.items():
            yield _parse_condition(written, key, values, where)


def _parse_condition(written: str, key: str, values: Any, where: str) -> Condition:
    quantifier, _, operator = written.rpartition(":")
    if_exists = operator.endswith(IF_EXISTS)
    operator = operator.removesuffix(IF_EXISTS)
    many = key.lower() == MANY_VALUED
    bare = operator != "Null" or written == "Null"
    if operator not in OPERATORS or not bare or quantifier not in ("", *QUANTIFIERS):
        raise PolicyError(
            f"{where}: the operator {written} is not supported; known: {', '.join(OPERATORS)}, also with {IF_EXISTS} "
            f"at the end, and with {' or '.join(QUANTIFIERS)} before"
        )
    if key.lower() not in KEYS and not key.lower().startswith(TAG_KEYS):
        known = ", ".join([*sorted(KEYS), *(f"{prefix}..." for prefix in TAG_KEYS)])
        raise PolicyError(f"{where}: the condition key {key} is not supported; known: {known}")
    if operator != "Null" and many is not bool(quantifier):
        advice = "has many values: write ForAllValues: or ForAnyValue:" if many else "has one value: write no"
        raise PolicyError(f"{where}: {written}: {key} {advice} {'before the operator' if many else quantifier}")
    words = _parse_words(values, f"{where}: {key}")
    if operator in ("Bool", "Null") and not set(words) <= {"true", "false"}:
        raise PolicyError(f'{where}: {written}: {key}: must be "true" or "false"')
    return Condition(operator=operator, quantifier=quantifier, if_exists=if_exists, key=key.lower(), values=words)
