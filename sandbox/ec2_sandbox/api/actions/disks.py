"""The actions on images, snapshots and volumes."""

from typing import Any, cast

from moto.core.responses import ActionResult

from ec2_sandbox.api import images, volumes
from ec2_sandbox.api.actions.launches import SandboxActions
from ec2_sandbox.api.actions.templates import check_tagged
from ec2_sandbox.api.instances import SandboxInstance


class DiskActions(SandboxActions):
    """The daemon copies disks, and attaches and detaches them."""

    def create_image(self) -> ActionResult:
        """Starts to make an image of an instance; the daemon copies its disks. A running instance reboots."""
        backend, tags = self.sandbox_backend, self._parse_tag_specification()
        if self._get_param("BlockDeviceMappings"):
            raise NotImplementedError("CreateImage with BlockDeviceMappings")
        instance = cast("SandboxInstance", backend.get_instance(self._get_param("InstanceId")))
        image = images.bake(backend, instance.id, self._get_param("Name"), tags)
        image.description = self._get_param("Description")
        if instance.state == "running" and not self._get_param("NoReboot"):
            instance.reboot()
        return ActionResult({"ImageId": image.id})

    def register_image(self) -> ActionResult:
        """Makes an image of snapshots."""
        image = images.register(
            self.sandbox_backend,
            self._get_param("Name"),
            self._get_param("BlockDeviceMappings", []),
            self._get_param("RootDeviceName", "/dev/sda1"),
            tags=self._parse_tag_specification("image"),
            description=self._get_param("Description"),
            architecture=self._get_param("Architecture", "i386"),
            virtualization_type=self._get_param("VirtualizationType", "paravirtual"),
            boot_mode=self._get_param("BootMode", "uefi-preferred"),
        )
        return ActionResult({"ImageId": image.id})

    def deregister_image(self) -> ActionResult:
        """As in moto, and deletes the image's snapshot if the caller wants that. The daemon removes its disk."""
        image = self.ec2_backend.amis.get(self._get_param("ImageId"))
        super().deregister_image()
        if image is None or not self._get_param("DeleteAssociatedSnapshots"):
            return ActionResult({"Return": True})
        deleted = []
        for snapshot in image.snapshots:
            self.ec2_backend.delete_snapshot(snapshot.id)
            deleted.append({"SnapshotId": snapshot.id, "ReturnCode": "success"})
        return ActionResult({"Return": True, "DeleteSnapshotResults": deleted})

    def create_snapshot(self) -> ActionResult:
        """Starts to copy a volume's bytes; the daemon makes the snapshot `completed`."""
        check_tagged(self._get_param("TagSpecifications", []), ("snapshot",))
        return super().create_snapshot()

    def describe_snapshots(self) -> ActionResult:
        """As in moto, but only those of the owners that the caller names."""
        result = super().describe_snapshots()
        named = {"self": self.current_account, "amazon": images.AMAZON}
        if owners := [named.get(one, one) for one in self._get_param("OwnerIds", [])]:
            answer = cast("dict[str, Any]", result.result)
            answer["Snapshots"] = [one for one in answer["Snapshots"] if one.owner_id in owners]
        return result

    def detach_volume(self) -> ActionResult:
        """Starts to detach a volume from its instance."""
        given = (self._get_param(name) for name in ("VolumeId", "InstanceId", "Device"))
        attachment = volumes.detach(self.sandbox_backend, *given)
        return ActionResult(
            {
                "VolumeId": attachment.volume.id,
                "InstanceId": attachment.instance.id,
                "Device": attachment.device,
                "State": attachment.status,
                "AttachTime": attachment.attach_time,
            }
        )
