"""Which machine image the nodes are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import Clients, error_code
from provision.config import ProvisionConfig, setting_error

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import ImageTypeDef, InstanceTypeInfoTypeDef
    from mypy_boto3_ssm import SSMClient


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImageSource:
    """Where the newest of a kind of image is found: by an SSM parameter, or by who publishes it as what."""

    parameter: str
    owner: str
    name: str


_DEEP_LEARNING = _ImageSource(
    # https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html
    parameter="/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    owner="898082745236",
    name="Deep Learning*Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)*",
)
_UBUNTU = _ImageSource(
    # https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/
    parameter="/aws/service/canonical/ubuntu/server/22.04/stable/current/{canonical_arch}/hvm/ebs-gp2/ami-id",
    owner="099720109477",
    name="ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-{canonical_arch}-server-*",
)
_CANONICAL_ARCH = {"x86_64": "amd64", "arm64": "arm64"}


def describe_image(
    clients: Clients,
    config: ProvisionConfig,
    info: InstanceTypeInfoTypeDef,
    architecture: str,
) -> ImageTypeDef:
    """The image, checked: it is there, fits the processor, and fits on the volume."""
    if config.ami == "auto":
        image = _find_image(clients, _image_source(config, info), architecture)
        if image is None:
            raise setting_error(
                config,
                "ami",
                f"{config.region} has no Ubuntu 22.04 for {architecture}",
                hint="name an image there",
            )
    else:
        image = _named_image(clients.ec2, config)
    image_architecture = image.get("Architecture", architecture)
    if image_architecture != architecture:
        problem = f"is for {image_architecture}, while {config.instance_type} is {architecture}"
        raise setting_error(config, "ami", problem, hint='set ami = "auto" in cluster.toml')
    if image.get("State", "available") != "available":
        problem = f"the image {image['ImageId']} is {image['State']}, not available"
        raise setting_error(config, "ami", problem, hint='set ami = "auto" in cluster.toml')
    least_gib = _root_size_gib(image)
    if config.volume_size_gib < least_gib:
        problem = f"the image {image['ImageId']} needs {least_gib} GiB"
        raise setting_error(config, "volume_size_gib", problem, hint=f"set volume_size_gib = {least_gib} or more")
    return image


def _image_source(config: ProvisionConfig, info: InstanceTypeInfoTypeDef) -> _ImageSource:
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    if not gpus:
        return _UBUNTU
    makers = {gpu["Manufacturer"] for gpu in gpus}
    if makers != {"NVIDIA"}:
        raise setting_error(
            config,
            "instance_type",
            f"has GPUs of {', '.join(sorted(makers))}; MXNet has wheels for NVIDIA's alone",
            hint='take a type with NVIDIA GPUs ("g4dn.xlarge", "g5.xlarge") or without any ("c5.xlarge")',
        )
    return _DEEP_LEARNING


def _find_image(clients: Clients, source: _ImageSource, architecture: str) -> ImageTypeDef | None:
    """The newest image of a source: by its SSM parameter or, where that is not to be had, by its name."""
    words = {"arch": architecture, "canonical_arch": _CANONICAL_ARCH[architecture]}
    image_id = _find_parameter(clients.ssm, source.parameter.format(**words))
    if image_id is not None:
        images = clients.ec2.describe_images(ImageIds=[image_id])["Images"]
    else:
        images = clients.ec2.describe_images(
            Owners=[source.owner],
            Filters=[
                {"Name": "name", "Values": [source.name.format(**words)]},
                {"Name": "architecture", "Values": [architecture]},
                {"Name": "state", "Values": ["available"]},
            ],
        )["Images"]
    return max(images, key=lambda image: image.get("CreationDate", ""), default=None)


def _find_parameter(ssm: SSMClient, name: str) -> str | None:
    try:
        return ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except ClientError as error:
        # Not every region has them, and an operator may lack ssm:GetParameter: describe_images serves then.
        if error_code(error) in {"ParameterNotFound", "AccessDeniedException", "AccessDenied"}:
            return None
        raise


def _named_image(ec2: EC2Client, config: ProvisionConfig) -> ImageTypeDef:
    try:
        images = ec2.describe_images(ImageIds=[config.ami])["Images"]
    except ClientError as error:
        if not error_code(error).startswith("InvalidAMIID"):
            raise
        images = []
    if not images:
        problem = f"{config.region} has no such image (an image belongs to one region)"
        raise setting_error(config, "ami", problem, hint='set ami = "auto" in cluster.toml')
    return images[0]


def _root_size_gib(image: ImageTypeDef) -> int:
    return max(
        (
            mapping.get("Ebs", {}).get("VolumeSize", 0)
            for mapping in image.get("BlockDeviceMappings", [])
            if mapping.get("DeviceName") == image.get("RootDeviceName")
        ),
        default=0,
    )
