"""EC2 in all regions of a sandbox, as the daemon sees it: one set of instances, whose hosts share a network."""

from collections.abc import Sequence
from typing import Any

from ec2_sandbox.api.ec2 import SandboxEC2Backend
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.api.volumes import SandboxSnapshot, SandboxVolume

# Dicts of moto's backends, by id; the security groups by VPC.
MERGED = ("volumes", "amis", "groups", "enis", "managed_prefix_lists")


class Regions:
    """The backends of a sandbox's regions, its own region first, with the part of their interface that hosts use."""

    def __init__(self, backends: Sequence[SandboxEC2Backend]) -> None:
        self._backends = tuple(backends)

    def sandbox_instances(self) -> list[SandboxInstance]:
        """Returns all instances, including terminated ones."""
        return [instance for backend in self._backends for instance in backend.sandbox_instances()]

    def sandbox_volumes(self) -> list[SandboxVolume]:
        """Returns all volumes."""
        return [volume for backend in self._backends for volume in backend.sandbox_volumes()]

    def sandbox_snapshots(self) -> list[SandboxSnapshot]:
        """Returns all snapshots."""
        return [snapshot for backend in self._backends for snapshot in backend.sandbox_snapshots()]

    def get_instance(self, instance_id: str) -> Any:
        """Returns an instance. Raises EC2ClientError for an unknown id."""
        backends = [each for each in self._backends if any(one.id == instance_id for one in each.sandbox_instances())]
        return (backends or self._backends)[0].get_instance(instance_id)

    def detach_volume(self, volume_id: str, instance_id: str, device: str) -> Any:
        """Detaches a volume in its region."""
        backend = next(each for each in self._backends if volume_id in each.volumes)
        return backend.detach_volume(volume_id, instance_id, device)

    def find_private_address(self, public_ip: str) -> str | None:
        """Returns the private address of the interface with this public address in any region, or None."""
        return next(filter(None, (backend.find_private_address(public_ip) for backend in self._backends)), None)

    def __getattr__(self, name: str) -> dict[Any, Any]:
        """Returns one of MERGED, with the entries of all regions.

        It is a copy, because some of moto's dicts create an entry for each key that is looked up.
        """
        if name not in MERGED:
            raise AttributeError(name)
        return {key: value for backend in self._backends for key, value in getattr(backend, name).items()}
