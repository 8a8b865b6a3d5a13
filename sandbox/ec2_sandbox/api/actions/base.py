"""What all groups of EC2's actions share."""

from typing import cast

from moto.ec2.responses import EC2Response

from ec2_sandbox.api.ec2 import SandboxEC2Backend


class SandboxActions(EC2Response):
    """moto's EC2 actions, with the sandbox's backend."""

    @property
    def sandbox_backend(self) -> SandboxEC2Backend:
        """The backend of the call's region."""
        return cast("SandboxEC2Backend", self.ec2_backend)
