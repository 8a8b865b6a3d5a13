"""The actions on images, snapshots and volumes."""

from typing import Any, cast

from moto.core.responses import ActionResult

from ec2_sandbox.api import images, volumes
from ec2_sandbox.api.actions.base import SandboxActions


class DiskActions(SandboxActions):
    """The daemon copies disks, and attaches and detaches them."""

    def create_image(self) -> ActionResult:
        """Starts to make an image of a stopped instance; the daemon copies its disk."""
        backend, tags = self.sandbox_backend, self._parse_tag_specification()
        made = images.bake(backend, self._get_param("InstanceId"), self._get_param("Name"), tags)
        backend.settings.wake()
        return ActionResult({"ImageId": made.id})

    def describe_images(self) -> ActionResult:
        """As in moto, but without images that are not yet visible."""
        result = super().describe_images()
        answer, hides = cast("dict[str, Any]", result.result), self.sandbox_backend.unsettled.hides
        answer["Images"] = [image for image in answer["Images"] if not hides("ami", image.id)]
        return result

    def deregister_image(self) -> ActionResult:
        """As in moto, and deletes the image's snapshot if the caller wants that. The daemon removes its disk."""
        image = self.ec2_backend.amis.get(self._get_param("ImageId"))
        super().deregister_image()
        if image is None or not self._get_param("DeleteAssociatedSnapshots"):
            return ActionResult({"Return": True})
        self.ec2_backend.delete_snapshot(image.ebs_snapshot.id)
        deleted = [{"SnapshotId": image.ebs_snapshot.id, "ReturnCode": "success"}]
        return ActionResult({"Return": True, "DeleteSnapshotResults": deleted})

    def create_volume(self) -> ActionResult:
        """As in moto, but the daemon makes the volume `available`."""
        result = super().create_volume()
        self.sandbox_backend.settings.wake()
        return result

    def describe_volumes(self) -> ActionResult:
        """As in moto, but without volumes that are not yet visible."""
        result = super().describe_volumes()
        answer = cast("dict[str, Any]", result.result)
        hides = self.sandbox_backend.unsettled.hides
        answer["Volumes"] = [volume for volume in answer["Volumes"] if not hides("vol", volume.id)]
        return result

    def attach_volume(self) -> ActionResult:
        """Starts to attach a volume to an instance."""
        return self._render_attachment(
            volumes.attach(
                self.sandbox_backend,
                self._get_param("VolumeId", ""),
                self._get_param("InstanceId", ""),
                self._get_param("Device", ""),
            )
        )

    def detach_volume(self) -> ActionResult:
        """Starts to detach a volume from its instance."""
        return self._render_attachment(
            volumes.detach(
                self.sandbox_backend,
                self._get_param("VolumeId", ""),
                self._get_param("InstanceId"),
                self._get_param("Device"),
            )
        )

    def _render_attachment(self, attachment: volumes.SandboxAttachment) -> ActionResult:
        self.sandbox_backend.settings.wake()
        return ActionResult(
            {
                "VolumeId": attachment.volume.id,
                "InstanceId": attachment.instance.id,
                "Device": attachment.device,
                "State": attachment.status,
                "AttachTime": attachment.attach_time,
                "DeleteOnTermination": attachment.delete_on_termination,
            }
        )
