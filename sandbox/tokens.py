"""ClientToken: a call that is repeated with the same one takes effect once.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from moto.ec2.exceptions import EC2ClientError

T = TypeVar("T")
MAX_TOKEN_LENGTH = 64
# Whether a call is a rehearsal, and its name, do not make it another call.
IGNORED = ("ClientToken", "DryRun")


class Tokens(Generic[T]):
    """What was answered to calls with a token."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[dict[str, Any], T]] = {}

    def find(self, action: str, token: str, parameters: Mapping[str, Any]) -> T | None:
        """The answer to the same call before. Raises EC2ClientError when the token was used for another call."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Invalid value '{token}' for clientToken: at most {MAX_TOKEN_LENGTH} characters.",
            )
        if (action, token) not in self._answers:
            return None
        first, answer = self._answers[action, token]
        if first != _comparable(parameters):
            raise EC2ClientError(
                "IdempotentParameterMismatch", "The client token has been used with other parameters before."
            )
        return answer

    def keep(self, action: str, token: str, parameters: Mapping[str, Any], answer: T) -> None:
        """Remembers the answer to a call."""
        self._answers[action, token] = (_comparable(parameters), answer)


def _comparable(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key not in IGNORED}
