"""The state that EC2 keeps about earlier calls: client tokens, and new resources that are not yet visible.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
"""

import datetime as dt
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moto.core.common_types import TYPE_RESPONSE
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

# By action: the id prefixes of the resources that it creates. The ids are in its response.
MADE_BY: dict[str, tuple[str, ...]] = {
    "RunInstances": ("i", "vol"), "CreateSecurityGroup": ("sg",), "CreateVolume": ("vol",),
    "CreatePlacementGroup": ("pg",), "ImportKeyPair": ("key",), "CreateKeyPair": ("key",),
    "CreateImage": ("ami",), "RegisterImage": ("ami",), "CreateFleet": ("i",), "CreateSnapshot": ("snap",),
}  # fmt: skip
# By action: the kind of the resource that it creates by name, and the parameter with the name.
NAMED_BY: dict[str, tuple[str, str]] = {
    "ImportKeyPair": ("key", "KeyName"), "CreateKeyPair": ("key", "KeyName"),
    "CreatePlacementGroup": ("pg", "GroupName"),
}  # fmt: skip
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
NOT_FOUND: dict[str, tuple[str, str]] = {
    "i": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "ami": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "sg": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "vol": ("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "snap": ("InvalidSnapshot.NotFound", "The snapshot '{}' does not exist."),
    "pg": ("InvalidPlacementGroup.Unknown", "The Placement Group '{}' is unknown."),
    "key": ("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
}

# Parameters that may differ between a call and its repetition.
IGNORED = ("ClientToken", "DryRun")


class Unsettled:
    """The new resources that are not yet visible."""

    def __init__(self, delay_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._delay_s = delay_s
        self._clock = clock
        self._made: dict[tuple[str, str], float] = {}

    def note(self, action: str, parameters: Mapping[str, Any], answer: str) -> None:
        """Hides the resources in an action's response from now on. The response to a repeated call hides nothing."""
        if not self._delay_s or action not in MADE_BY:
            return
        now = self._clock()
        for prefix in MADE_BY[action]:
            for found in re.findall(rf"\b{prefix}-[0-9a-f]{{8,17}}\b", answer):
                self._made.setdefault((prefix, found), now)
        if action in NAMED_BY:
            kind, parameter = NAMED_BY[action]
            self.hide(kind, parameters[parameter])

    def hide(self, kind: str, name: str) -> None:
        """Hides something from now on."""
        self._made[kind, name] = self._clock()

    def hides(self, kind: str, name: str) -> bool:
        """Returns whether a resource is not yet visible. kind: the prefix of its id. name: its id or its name."""
        created_at = self._made.get((kind, name))
        return created_at is not None and self._clock() - created_at < self._delay_s

    def hides_made_at(self, created_at: dt.datetime) -> bool:
        """Returns whether another service's resource is not yet visible. created_at: UTC, naive, as in moto."""
        return (utcnow() - created_at).total_seconds() < self._delay_s

    def check(self, action: str, parameters: Any) -> None:
        """Raises EC2ClientError with EC2's code if a call names a resource that is not yet visible."""
        if not self._delay_s:
            return
        for parameter, value in _words(parameters, ""):
            kind = _kind_of(action, parameter, value)
            if kind is not None and self.hides(kind, value):
                code, message = NOT_FOUND[kind]
                raise EC2ClientError(code, message.format(value))


def _kind_of(action: str, parameter: str, value: str) -> str | None:
    if action in NAMED_BY and parameter == NAMED_BY[action][1]:
        return None  # a second resource with the same name is a duplicate
    if parameter in ("KeyName", "KeyNames"):
        return "key"
    if parameter in ("GroupName", "GroupNames") and "SecurityGroup" not in action:
        return "pg"
    prefix = value.partition("-")[0]
    return prefix if prefix in NOT_FOUND else None


def _words(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yields each string in a call's parameters, with the name of its parameter."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            # A filter with an unknown id matches nothing; it does not fail.
            if key not in ("Filters", "Filter", "ClientToken"):
                yield from _words(below, str(key))
    elif isinstance(value, list):
        for below in value:
            yield from _words(below, name)


class Tokens:
    """The responses to calls with a client token."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[dict[str, Any], TYPE_RESPONSE]] = {}

    def find(self, action: str, token: str, parameters: Mapping[str, Any]) -> TYPE_RESPONSE | None:
        """Returns the response to an earlier identical call, or None.

        Raises EC2ClientError if the token was used with other parameters.
        """
        if (action, token) not in self._answers:
            return None
        first, answer = self._answers[action, token]
        if first != _comparable(parameters):
            raise EC2ClientError(
                "IdempotentParameterMismatch", "The client token has been used with other parameters before."
            )
        return answer

    def keep(self, action: str, token: str, parameters: Mapping[str, Any], answer: TYPE_RESPONSE) -> None:
        """Remembers the response to a call."""
        self._answers[action, token] = (_comparable(parameters), answer)


def _comparable(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key not in IGNORED}
