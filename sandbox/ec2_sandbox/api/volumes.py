"""EC2's volumes and their attachments, with states that take time.

https://docs.aws.amazon.com/ebs/latest/userguide/ebs-describing-volumes.html
"""

from typing import Any, cast

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_block_store import Volume, VolumeAttachment

from ec2_sandbox.api.instances import SandboxInstance

DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop") + tuple(f"/dev/xvd{letter}" for letter in "fghijklmnop")
"""The device names for attached volumes (https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html)."""


class SandboxAttachment(VolumeAttachment):
    """An attachment. status: attaching, attached, busy or detaching.

    by_call: whether AttachVolume created it; otherwise, the launch did.
    """

    delete_on_termination = False
    by_call = False


class SandboxVolume(Volume):
    """A volume that is `creating` until the daemon processes it."""

    is_ready = False

    @property
    def status(self) -> str:
        """As in moto, but also `creating`."""
        return "creating" if not self.is_ready and self.attachment is None else super().status

    def is_attached_to(self, instance_id: str) -> bool:
        """Returns whether AttachVolume has attached it to this instance, or is attaching it."""
        attachment = cast("SandboxAttachment | None", self.attachment)
        return (
            attachment is not None
            and attachment.by_call
            and attachment.status in ("attaching", "attached")
            and attachment.instance.id == instance_id
        )

    @property
    def image_bytes(self) -> int:
        """The size in bytes."""
        return int(self.size) << 30


def attach(backend: Any, volume_id: str, instance_id: str, device: str) -> SandboxAttachment:
    """Starts to attach a volume; the daemon completes it. Raises EC2ClientError with EC2's codes."""
    volume = cast("SandboxVolume", backend.get_volume(volume_id))
    instance = cast("SandboxInstance", backend.get_instance(instance_id))
    if volume.attachment is not None:
        raise EC2ClientError("VolumeInUse", f"{volume_id} is already attached to an instance")
    if volume.status != "available":
        raise EC2ClientError("IncorrectState", f"{volume_id} is not 'available'.")
    if instance.state not in ("running", "stopping", "stopped"):
        raise EC2ClientError("IncorrectState", f"Instance '{instance_id}' is not 'running'.")
    if volume.availability_zone != instance.availability_zone:
        raise EC2ClientError(
            "InvalidVolume.ZoneMismatch", f"The volume '{volume_id}' is not in the same availability zone as instance "
            f"'{instance_id}'",
        )  # fmt: skip
    if device not in DEVICES:
        raise EC2ClientError("InvalidParameterValue", f"Value ({device}) for parameter device is invalid. {device} is "
                             "not a valid EBS device name.")  # fmt: skip
    if device in instance.block_device_mapping:
        raise EC2ClientError(
            "InvalidParameterValue", f"Invalid value '{device}' for unixDevice. Attachment point {device} is already "
            "in use",
        )  # fmt: skip
    attachment = cast("SandboxAttachment", backend.attach_volume(volume_id, instance_id, device))
    attachment.by_call, attachment.status = True, "attaching"
    return attachment


def detach(backend: Any, volume_id: str, instance_id: str | None, device: str | None) -> SandboxAttachment:
    """Starts to detach a volume; the daemon completes it. Raises EC2ClientError with EC2's codes."""
    volume = cast("SandboxVolume", backend.get_volume(volume_id))
    attachment = cast("SandboxAttachment | None", volume.attachment)
    if attachment is None:
        raise EC2ClientError("IncorrectState", f"Volume '{volume_id}' is in the 'available' state.")
    if (instance_id and attachment.instance.id != instance_id) or (device and attachment.device != device):
        raise EC2ClientError(
            "InvalidAttachment.NotFound", f"The volume '{volume_id}' is not attached to instance '{instance_id}'"
            f"{f' as device {device}' if device else ''}.",
        )  # fmt: skip
    instance = cast("SandboxInstance", attachment.instance)
    if attachment.device == instance.root_device_name and instance.state != "stopped":
        raise EC2ClientError(
            "OperationNotPermitted", f"Unable to detach root volume '{volume_id}' from instance '{instance.id}'"
        )
    attachment.status = "detaching"
    return attachment
