"""EC2 Instance Connect: a public key that opens a host's sshd for 60 seconds.

https://docs.aws.amazon.com/ec2-instance-connect/latest/APIReference/API_SendSSHPublicKey.html
"""

import json
import re
import uuid
from typing import cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from moto.core.exceptions import JsonRESTError
from moto.ec2.models import ec2_backends
from moto.ec2instanceconnect.responses import Ec2InstanceConnectResponse

from ec2_sandbox.api.ec2 import SandboxEC2Backend
from ec2_sandbox.hosts.inside import run_inside

USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,30}[A-Za-z0-9$_-]?")
CONNECT = "/usr/lib/ec2-sandbox/connect"  # in hosts/root


class SandboxInstanceConnectResponse(Ec2InstanceConnectResponse):
    """The action that sends a key."""

    def send_ssh_public_key(self) -> str:
        """Adds the key for a user of the host. As on AWS, nobody checks whether the host has the user.

        Raises JsonRESTError with one of EC2 Instance Connect's codes.
        """
        request = json.loads(self.body)
        instance_id, user = request["InstanceId"], request["InstanceOSUser"]
        key = _check_key(request["SSHPublicKey"])
        if USER.fullmatch(user) is None:
            raise JsonRESTError("InvalidArgsException", f"The user name '{user}' is not valid")
        self._check_instance(instance_id, request.get("AvailabilityZone"))
        pid = SandboxEC2Backend.settings.fleet.find_host(instance_id)
        if pid is None:
            raise JsonRESTError("EC2InstanceUnavailableException", f"The instance '{instance_id}' cannot be reached")
        done = run_inside(pid, CONNECT, user, key)
        if done.returncode != 0:
            raise JsonRESTError("ServiceException", f"The host did not accept the key: {done.stdout.decode()}")
        return json.dumps({"RequestId": str(uuid.uuid4()), "Success": True})

    def _check_instance(self, instance_id: str, zone: str | None) -> None:
        backend = cast("SandboxEC2Backend", ec2_backends[self.current_account][self.region])
        found = next((one for one in backend.sandbox_instances() if one.id == instance_id), None)
        if found is None or zone not in (None, found.availability_zone):
            where = f" in the Availability Zone {zone}" if zone else ""
            raise JsonRESTError("EC2InstanceNotFoundException", f"There is no instance '{instance_id}'{where}")


def _check_key(text: str) -> str:
    """Returns a public key without its comment. Raises JsonRESTError unless it is one key in OpenSSH's format."""
    try:
        load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise JsonRESTError("InvalidArgsException", "The SSH public key is not valid") from error
    return " ".join(text.split()[:2])
