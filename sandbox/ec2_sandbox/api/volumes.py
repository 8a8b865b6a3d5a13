"""EC2's volumes and their attachments, with states that take time.

https://docs.aws.amazon.com/ebs/latest/userguide/ebs-describing-volumes.html
"""

from typing import Any, cast

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_block_store import Snapshot, Volume, VolumeAttachment

from ec2_sandbox.api.instances import SandboxInstance

DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop") + tuple(f"/dev/xvd{letter}" for letter in "fghijklmnop")
"""The device names for attached volumes (https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html)."""


class SandboxAttachment(VolumeAttachment):
    """An attachment. status: attaching, attached, busy or detaching."""

    @property
    def delete_on_termination(self) -> bool:
        """Whether the volume is deleted with its instance, which ModifyInstanceAttribute changes."""
        mapping = self.instance.block_device_mapping.get(self.device)
        return mapping is not None and bool(mapping.delete_on_termination)


class SandboxSnapshot(Snapshot):
    """A snapshot that is `pending` until the daemon has its bytes. The snapshots of public images have none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.status = "completed" if self.from_ami else "pending"

    @property
    def progress(self) -> str:
        """How much of it is copied."""
        return "100%" if self.status == "completed" else "0%"


class SandboxVolume(Volume):
    """A volume that is `creating` until the daemon processes it."""

    is_ready = False

    @property
    def status(self) -> str:
        """As in moto, but also `creating`."""
        return "creating" if not self.is_ready and self.attachment is None else super().status

    @property
    def is_root(self) -> bool:
        """Whether it is the root volume of an instance."""
        attachment = cast("SandboxAttachment | None", self.attachment)
        return attachment is not None and attachment.device == attachment.instance.root_device_name

    def is_attached_to(self, instance_id: str) -> bool:
        """Returns whether it is a disk of this instance besides the root volume, or is being attached."""
        attachment = cast("SandboxAttachment | None", self.attachment)
        return (
            attachment is not None
            and not self.is_root
            and attachment.status in ("attaching", "attached")
            and attachment.instance.id == instance_id
        )

    @property
    def image_bytes(self) -> int:
        """The size in bytes."""
        return int(self.size) << 30


def check_attachable(volume: Volume, instance: SandboxInstance, device: str) -> None:
    """Raises EC2ClientError, with EC2's codes, if the volume cannot be attached there."""
    if volume.attachment is not None:
        raise EC2ClientError("VolumeInUse", f"{volume.id} is already attached to an instance")
    if volume.status != "available":
        raise EC2ClientError("IncorrectState", f"{volume.id} is not 'available'.")
    if instance.state not in ("running", "stopping", "stopped"):
        raise EC2ClientError("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    if volume.availability_zone != instance.availability_zone:
        raise EC2ClientError(
            "InvalidVolume.ZoneMismatch", f"The volume '{volume.id}' is not in the same availability zone as instance "
            f"'{instance.id}'",
        )  # fmt: skip
    if device not in DEVICES:
        raise EC2ClientError("InvalidParameterValue", f"Value ({device}) for parameter device is invalid. {device} is "
                             "not a valid EBS device name.")  # fmt: skip
    if device in instance.block_device_mapping:
        raise EC2ClientError(
            "InvalidParameterValue", f"Invalid value '{device}' for unixDevice. Attachment point {device} is already "
            "in use",
        )  # fmt: skip


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
    if volume.is_root:
        raise EC2ClientError("OperationNotPermitted", f"Unable to detach root volume '{volume_id}'")
    attachment.status = "detaching"
    return attachment
