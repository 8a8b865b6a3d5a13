"""The machine images that launchers request, those in images.toml, and images of a sandbox's own.

All these images boot the machine's own system.
"""

import datetime as dt
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ec2.utils import random_ami_id

from ec2_sandbox.api.instances import IncorrectInstanceStateError
from ec2_sandbox.api.volumes import SandboxSnapshot

Devices = Iterable[Mapping[str, Any]]
"""Block devices, in the format of the API."""

USUAL_DISK = {"DeleteOnTermination": True, "VolumeType": "gp3", "Encrypted": False}
AMAZON = "898082745236"  # the account of the Deep Learning AMIs
PUBLIC: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["image"]


class SandboxAmi(Ami):
    """An image with a root volume of the real size, or with the volumes of its own snapshots. moto's have 15 GB.

    devices: its block devices. parameter: the name of a public image's parameter in SSM (ssm.py).
    """

    devices: tuple[dict[str, Any], ...] = ()
    parameter = ""

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The volumes, which are deleted with the instance unless the image or the launch specifies otherwise."""
        return [{**device, "Ebs": {**USUAL_DISK, **device["Ebs"]}} for device in self.devices]

    @property
    def snapshots(self) -> list[SandboxSnapshot]:
        """The snapshots of its volumes that still exist."""
        known = self.ec2_backend.snapshots
        ids = (device["Ebs"].get("SnapshotId") for device in self.block_device_mappings)
        return [known[one] for one in ids if one in known]

    def follow_snapshots(self) -> None:
        """Makes a pending image `available` once it has all snapshots, or `failed` if one has failed."""
        states = {snapshot.status for snapshot in self.snapshots}
        if self.state == "pending" and "pending" not in states:
            self.state = "failed" if "error" in states else "available"


def bake(backend: EC2Backend, instance_id: str, name: str, tags: Mapping[str, Mapping[str, str]]) -> SandboxAmi:
    """Adds an image of an instance, which is `pending` until the daemon has copied its disks.

    tags: of the image and of its snapshots, by kind. Raises EC2ClientError with EC2's codes.
    """
    instance: Any = backend.get_instance(instance_id)
    _check_name(backend, name)
    if instance.state not in ("running", "stopped"):
        raise IncorrectInstanceStateError(instance_id, "imaged")
    source = backend.amis.get(instance.image_id)
    mappings: list[dict[str, Any]] = []
    for device, attached in instance.block_device_mapping.items():
        snapshot = backend.create_snapshot(attached.volume_id, f"Created by CreateImage({instance_id})")
        snapshot.add_tags(dict(tags.get("snapshot", {})))
        mappings.append({"DeviceName": device, "Ebs": {"SnapshotId": snapshot.id}})
    return _add(
        backend,
        name,
        mappings,
        tags,
        instance=instance,
        state="pending",
        root_device_name=instance.root_device_name,
        boot_mode=source.boot_mode if source else "uefi-preferred",
        snapshot_description=f"Created by CreateImage({instance_id})",
    )


def register(backend: EC2Backend, name: str, devices: Devices, root: str, **more: Any) -> SandboxAmi:
    """Adds an image of snapshots. root: the device name of the root volume. Raises EC2ClientError."""
    _check_name(backend, name)
    tags = more.pop("tags")
    if not any(device["DeviceName"] == root and device.get("Ebs", {}).get("SnapshotId") for device in devices):
        raise EC2ClientError("InvalidBlockDeviceMapping", f"The device {root} has no root snapshot.")
    return _add(backend, name, [one for one in devices if "Ebs" in one], tags, root_device_name=root, **more)


def _check_name(backend: EC2Backend, name: str) -> None:
    if used := next((one.id for one in backend.amis.values() if one.name == name and not one.is_public), None):
        raise EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {used}")


def _add(
    backend: EC2Backend, name: str, devices: Devices, tags: Mapping[str, Mapping[str, str]], **more: Any
) -> SandboxAmi:
    """Adds an image of this account with the snapshots of `devices`."""
    ami = SandboxAmi(
        backend, random_ami_id(), name=name, image_location=f"{backend.account_id}/{name}", hypervisor="xen",
        root_device_type="ebs", region_name=f"{backend.region_name}a", **more,
    )  # fmt: skip
    backend.delete_snapshot(ami.ebs_snapshot.id)  # that of moto
    complete = []
    for device in devices:
        snapshot: Any = backend.get_snapshot(ebs["SnapshotId"]) if (ebs := device["Ebs"]).get("SnapshotId") else None
        if snapshot is not None:
            snapshot.from_ami = snapshot.from_ami or ami.id
        size = {"VolumeSize": snapshot.volume_size} if snapshot is not None else {}
        complete.append({"DeviceName": device["DeviceName"], "Ebs": {**size, **ebs}})
        if device["DeviceName"] == ami.root_device_name:
            ami.ebs_snapshot = snapshot
    ami.devices = tuple(complete)
    ami.add_tags(dict(tags.get("image", {})))
    backend.amis[ami.id] = ami
    return ami


def publish(backend: EC2Backend) -> None:
    """Adds the public images.

    They are of the 10th of last month, which is part of their names: all sandboxes that start in the same month have
    the same images. An image's id depends only on its name.
    """
    month = utcnow().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    created = (month - dt.timedelta(days=1)).replace(day=10)
    for image in PUBLIC:
        name, description = (image[key].format(day=f"{created:%Y%m%d}") for key in ("name", "description"))
        alias = image.get("owner_alias")
        ami = SandboxAmi(
            backend, "ami-0" + hashlib.sha256(name.encode()).hexdigest()[:16], name=name, description=description,
            owner_id=image["owner_id"], owner_alias=alias, public=True, architecture=image["architecture"],
            root_device_name=image["root_device_name"], creation_date=created,
            image_location=f"{alias or image['owner_id']}/{name}", region_name=f"{backend.region_name}a",  # a zone
            virtualization_type="hvm", hypervisor="xen", root_device_type="ebs", boot_mode="uefi-preferred",
        )  # fmt: skip
        ami.ebs_snapshot.volume.size = image["root_gib"]
        root = {"SnapshotId": ami.ebs_snapshot.id, "VolumeSize": image["root_gib"]}
        ami.devices = ({"DeviceName": ami.root_device_name, "Ebs": root},)
        ami.parameter = f"/aws/service/{image['parameter']}/ami-id"
        backend.amis[ami.id] = ami
