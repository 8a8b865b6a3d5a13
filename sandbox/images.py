"""The machine images that a launcher asks for, and the SSM parameters that name them.

Parameter names: https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html and
https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/
Image names and owners are those of the public images, the ids are made up. What boots is the machine's own system.
"""

import datetime as dt
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ssm_backends

AMAZON = "898082745236"  # the account of the Deep Learning AMIs
CANONICAL = "099720109477"
RELEASES = {"22.04": ("jammy", "hvm-ssd", "ebs-gp2"), "24.04": ("noble", "hvm-ssd-gp3", "ebs-gp3")}
DEEP_LEARNING_ROOT_GIB = 75
UBUNTU_ROOT_GIB = 8
# The Deep Learning AMIs' systems: how the parameter's name ends, how the image's reads, and the root device.
DEEP_LEARNING_SYSTEMS = (
    ("ubuntu-22.04", "Ubuntu 22.04", "/dev/sda1"),
    ("ubuntu-24.04", "Ubuntu 24.04", "/dev/sda1"),
    ("amazon-linux-2023", "Amazon Linux 2023", "/dev/xvda"),
)
ARCHITECTURES = (("x86_64", "amd64"), ("arm64", "arm64"))
# Public images are deprecated two years after they were made; one that has been for long is there to be met.
LIFETIME = dt.timedelta(days=730)
OLD = dt.timedelta(days=900)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicImage:
    """A public image. `root_gib`: size of its root volume.

    `parameter`: the name in SSM under which the newest one is found; None for one that is not the newest.
    """

    parameter: str | None
    name: str
    description: str
    owner_id: str
    owner_alias: str | None
    architecture: str
    root_gib: int
    created: dt.datetime
    root_device: str = "/dev/sda1"

    @property
    def deprecated(self) -> dt.datetime:
        """When it is, or was, deprecated."""
        return self.created + LIFETIME

    @property
    def id(self) -> str:
        """Made from the name, so that it stays the same."""
        return "ami-0" + hashlib.sha256(self.name.encode()).hexdigest()[:16]


class SandboxAmi(Ami):
    """An image whose root volume has the size and the kind of the real one; moto's always have 15 GB."""

    root_gib = UBUNTU_ROOT_GIB
    deprecated: dt.datetime | None = None

    @property
    def deprecation_time(self) -> str | None:
        """As DescribeImages has it."""
        return self.deprecated.strftime("%Y-%m-%dT%H:%M:%S.000Z") if self.deprecated else None

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The root volume, which goes with the instance unless the launch says otherwise."""
        [root] = super().block_device_mappings
        ebs = {"VolumeSize": self.root_gib, "DeleteOnTermination": True, "VolumeType": "gp3", "Encrypted": False}
        return [{**root, "Ebs": {**root["Ebs"], **ebs}}]


def public_images(created: dt.datetime) -> Iterator[PublicImage]:
    """The newest Ubuntu images and Deep Learning AMIs for both architectures, and one Deep Learning AMI of long ago.

    created: when the newest were published; part of their names.
    """
    for architecture, debian in ARCHITECTURES:
        for release in RELEASES:
            yield _ubuntu(release, architecture, debian, created)
        for system, title, device in DEEP_LEARNING_SYSTEMS:
            parameter = (
                f"/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-{system}/latest/ami-id"
            )
            yield _deep_learning(title, architecture, device, created, parameter)
    yield _deep_learning("Ubuntu 22.04", "x86_64", "/dev/sda1", created - OLD, None)


def _ubuntu(release: str, architecture: str, debian: str, created: dt.datetime) -> PublicImage:
    codename, storage, ebs = RELEASES[release]
    day = created.strftime("%Y%m%d")
    return PublicImage(
        parameter=f"/aws/service/canonical/ubuntu/server/{release}/stable/current/{debian}/hvm/{ebs}/ami-id",
        name=f"ubuntu/images/{storage}/ubuntu-{codename}-{release}-{debian}-server-{day}",
        description=f"Canonical, Ubuntu, {release} LTS, {debian} {codename} image build on {day}",
        owner_id=CANONICAL,
        owner_alias=None,
        architecture=architecture,
        root_gib=UBUNTU_ROOT_GIB,
        created=created,
    )


def _deep_learning(
    title: str, architecture: str, device: str, created: dt.datetime, parameter: str | None
) -> PublicImage:
    arm = "ARM64 " if architecture == "arm64" else ""
    return PublicImage(
        parameter=parameter,
        name=f"Deep Learning {arm}Base OSS Nvidia Driver GPU AMI ({title}) {created.strftime('%Y%m%d')}",
        description="Supported EC2 instances: G4dn, G5, G6, Gr6, G6e, P4d, P4de, P5",
        owner_id=AMAZON,
        owner_alias="amazon",
        architecture=architecture,
        root_gib=DEEP_LEARNING_ROOT_GIB,
        created=created,
        root_device=device,
    )


def publish(backend: EC2Backend, created: dt.datetime) -> None:
    """Makes the public images known to EC2 and to SSM in the backend's region."""
    parameters = ssm_backends[DEFAULT_ACCOUNT_ID][backend.region_name]._parameters  # noqa: SLF001 -- moto has no other way to put what begins with /aws
    for image in public_images(created):
        ami = SandboxAmi(
            backend,
            image.id,
            name=image.name,
            description=image.description,
            owner_id=image.owner_id,
            owner_alias=image.owner_alias,
            public=True,
            virtualization_type="hvm",
            architecture=image.architecture,
            creation_date=image.created,
            image_location=f"{image.owner_alias or image.owner_id}/{image.name}",
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name=image.root_device,
            boot_mode="uefi-preferred",
        )
        ami.root_gib = image.root_gib
        ami.deprecated = image.deprecated
        backend.amis[image.id] = ami
        if image.parameter is None:
            continue
        parameters[image.parameter].append(
            Parameter(  # type: ignore[abstract]  # as moto itself makes them
                account_id=DEFAULT_ACCOUNT_ID,
                name=image.parameter,
                value=image.id,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=image.created,
                version=1,
                data_type="aws:ec2:image",
            )
        )
