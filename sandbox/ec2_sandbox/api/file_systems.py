"""FSx file systems, with what moto omits: the lifecycle state, the VPC, the network interfaces, the mount name."""

from typing import Any

from moto.ec2.models import ec2_backends
from moto.fsx.models import FileSystem


class SandboxFileSystem(FileSystem):
    """A file system that is available immediately. No server backs it."""

    def __init__(self, account_id: str, region_name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(account_id, region_name, *args, **kwargs)
        backend = ec2_backends[account_id][region_name]
        subnets = [backend.get_subnet(subnet_id) for subnet_id in self.subnet_ids]
        self._vpc_id = subnets[0].vpc_id
        self._interfaces = [
            backend.create_network_interface(subnet, [], group_ids=list(self.security_group_ids or []))
            for subnet in subnets
        ]
        if self.file_system_type == "LUSTRE":
            self.lustre_configuration = {"MountName": "fsx", **(self.lustre_configuration or {})}

    def to_dict(self) -> dict[str, Any]:
        """Returns the file system as in DescribeFileSystems' response."""
        more = {
            "Lifecycle": "AVAILABLE",
            "VpcId": self._vpc_id,
            "NetworkInterfaceIds": [interface.id for interface in self._interfaces],
        }
        return {**super().to_dict(), **more}
