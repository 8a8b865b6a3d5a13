"""What all groups of EC2's actions share."""

from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from ec2_sandbox.api.ec2 import SandboxEC2Backend


class SandboxActions(EC2Response):
    """moto's EC2 actions, with the sandbox's backend."""

    @property
    def sandbox_backend(self) -> SandboxEC2Backend:
        """The backend of the call's region."""
        return cast("SandboxEC2Backend", self.ec2_backend)

    def hide(self, result: ActionResult, name: str, kind: str) -> ActionResult:
        """Removes resources that are not yet visible from a list in a response. kind: the prefix of their ids."""
        answer, hides = cast("dict[str, Any]", result.result), self.sandbox_backend.unsettled.hides
        answer[name] = [one for one in answer[name] if not hides(kind, one.id)]
        return result
