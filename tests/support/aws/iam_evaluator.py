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
    """A policy document has elements that are not supported here."""


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
    document = json.loads(text)
    _check(set(document) <= {"Version", "Id", "Statement"}, document)
    statements = document["Statement"]
    statements = [statements] if isinstance(statements, dict) else statements
    return Policy(statements=tuple(_parse_statement(one) for one in statements))


def _check(holds: object, found: Any) -> None:
    if not holds:
        raise PolicyError(f"not supported: {found}")


def _parse_statement(found: Mapping[str, Any]) -> Statement:
    _check(set(found) <= ELEMENTS and found["Effect"] in ("Allow", "Deny"), found)
    actions, other_actions = _parse_choice(found, "Action")
    resources, other_resources = _parse_choice(found, "Resource")
    _check(all(action == "*" or re.fullmatch(r"[A-Za-z0-9-]+:[A-Za-z0-9*?]+", action) for action in actions), found)
    _check(all(resource == "*" or resource.startswith("arn:") for resource in resources), found)
    return Statement(
        allows=found["Effect"] == "Allow",
        actions=actions,
        other_actions=other_actions,
        resources=resources,
        other_resources=other_resources,
        conditions=tuple(
            _parse_condition(written, key, values)
            for written, keys in found.get("Condition", {}).items()
            for key, values in keys.items()
        ),
    )


def _parse_choice(found: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], bool]:
    """Returns the value of `Action` or `NotAction` (or of another name), and whether it was the latter."""
    _check((name in found) is not (f"Not{name}" in found), found)
    inverted = name not in found
    return _parse_words(found[f"Not{name}" if inverted else name]), inverted


def _parse_words(found: Any) -> tuple[str, ...]:
    words = found if isinstance(found, list) else [found]
    words = [str(word).lower() if isinstance(word, bool) else word for word in words]
    _check(words and all(isinstance(word, str) and "${" not in word for word in words), found)
    return tuple(words)


def _parse_condition(written: str, key: str, values: Any) -> Condition:
    quantifier, _, operator = written.rpartition(":")
    if_exists = operator.endswith(IF_EXISTS)
    operator = operator.removesuffix(IF_EXISTS)
    _check(operator in OPERATORS and quantifier in ("", *QUANTIFIERS), written)
    _check(key.lower() in KEYS or key.lower().startswith(TAG_KEYS), key)
    # A key with many values needs a quantifier, and one with a single value must not have one.
    _check(operator == "Null" or (key.lower() == MANY_VALUED) is bool(quantifier), written)
    words = _parse_words(values)
    return Condition(operator=operator, quantifier=quantifier, if_exists=if_exists, key=key.lower(), values=words)
