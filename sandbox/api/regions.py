"""EC2 in several regions, as the daemon sees it: one set of instances, whose hosts share one network."""

from collections.abc import Iterator, Sequence
from typing import Any

from sandbox.api.ec2 import SandboxEC2Backend
from sandbox.api.instances import SandboxInstance
from sandbox.api.volumes import SandboxVolume


class Regions:
    """The backends of a sandbox's regions; the sandbox's own region is the first. Has what hosts depend on."""

    def __init__(self, backends: Sequence[SandboxEC2Backend]) -> None:
        self._backends = tuple(backends)

    def __iter__(self) -> Iterator[SandboxEC2Backend]:
        return iter(self._backends)

    def __getitem__(self, region: str) -> SandboxEC2Backend:
        return next(backend for backend in self._backends if backend.region_name == region)

    def sandbox_instances(self) -> list[SandboxInstance]:
        """All instances, including terminated ones."""
        return [instance for backend in self._backends for instance in backend.sandbox_instances()]

    def sandbox_volumes(self) -> list[SandboxVolume]:
        """All volumes."""
        return [volume for backend in self._backends for volume in backend.sandbox_volumes()]

    def get_instance(self, instance_id: str) -> Any:
        """An instance. Raises EC2ClientError."""
        backends = [each for each in self._backends if any(one.id == instance_id for one in each.sandbox_instances())]
        return (backends or self._backends)[0].get_instance(instance_id)

    def detach_volume(self, volume_id: str, instance_id: str, device: str) -> Any:
        """Detaches a volume, in its region."""
        backend = next(each for each in self._backends if volume_id in each.volumes)
        return backend.detach_volume(volume_id, instance_id, device)

    def find_private_address(self, public_ip: str) -> str | None:
        """As a backend's."""
        return next(filter(None, (backend.find_private_address(public_ip) for backend in self._backends)), None)

    def _merge(self, name: str) -> dict[Any, Any]:
        """The entries of all regions. A copy: some of moto's dicts make an entry for each key that is looked up."""
        return {key: value for backend in self._backends for key, value in getattr(backend, name).items()}

    @property
    def volumes(self) -> dict[Any, Any]:
        """By id; so are the others."""
        return self._merge("volumes")

    @property
    def reservations(self) -> dict[Any, Any]:
        """Those that RunInstances makes."""
        return self._merge("reservations")

    @property
    def groups(self) -> dict[Any, Any]:
        """Security groups, by VPC."""
        return self._merge("groups")

    @property
    def enis(self) -> dict[Any, Any]:
        """Network interfaces."""
        return self._merge("enis")

    @property
    def managed_prefix_lists(self) -> dict[Any, Any]:
        """Prefix lists."""
        return self._merge("managed_prefix_lists")


Backend = SandboxEC2Backend | Regions
"""EC2 as the hosts depend on it: in one region, or in several."""
