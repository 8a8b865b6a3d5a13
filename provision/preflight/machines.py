"""Instance types, the zones that offer them, and machine images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from foundation.errors import ConfigError, NotInRegionError
from foundation.thread_pool import bounded_pool
from node.protocol import Machine
from provision.aws.clients import Clients, aws_errors
from provision.aws.iam_policy import partition_of
from provision.config import ProvisionConfig, setting_error
from provision.model import TAG_NAME
from provision.plan import Request

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, GpuDeviceInfoTypeDef, ImageTypeDef, InstanceTypeInfoTypeDef


_HINT_TYPES = "to list a region's types: aws ec2 describe-instance-type-offerings"


class TypeFacts(Struct, frozen=True, kw_only=True):
    """An instance type.

    architecture: x86_64 or arm64. gpus: see render_gpus. in_cluster_placement: supports placement groups with the
    strategy `cluster`. efa: supports an Elastic Fabric Adapter. on_spot: available on the spot market.
    """

    name: str
    architecture: str
    vcpus: int
    gpus: str
    gpu_makers: frozenset[str]
    in_cluster_placement: bool
    efa: bool
    on_spot: bool


def describe_types(ec2: EC2Client, config: ProvisionConfig, types: Sequence[str]) -> dict[str, TypeFacts]:
    """Returns the types, in order. Raises ConfigError for the first that the region lacks, and boto3's errors."""
    found = list_types(ec2, types)
    for name in types:
        if name not in found:
            near = get_close_matches(name, list_types(ec2, [f"{name.partition('.')[0]}.*"]), n=1)
            meant = f'; did you mean "{near[0]}"?' if near else ""
            wrong = type_error(config, name, f"{config.region} has no such instance type{meant}", hint=_HINT_TYPES)
            raise NotInRegionError(wrong.message, hint=wrong.hint)
    return {name: _facts(name, found[name]) for name in types}


class Hardware(Struct, frozen=True, kw_only=True):
    """The hardware of an instance type, or of an instance with its machine. gpus: the number of NVIDIA's GPUs."""

    gpus: int
    memory_mib: int
    machine: Machine = Machine()


def describe_hardware(ec2: EC2Client, types: Iterable[str]) -> Mapping[str, Hardware]:
    """Returns the hardware of those types that the region has. Raises AwsError."""
    with aws_errors("looking up the instance type"):
        found = list_types(ec2, types)
    return {
        name: Hardware(
            gpus=sum(
                _count(gpu) for gpu in info.get("GpuInfo", {}).get("Gpus", []) if gpu.get("Manufacturer") == "NVIDIA"
            ),
            memory_mib=info["MemoryInfo"]["SizeInMiB"],
        )
        for name, info in found.items()
    }


def list_types(ec2: EC2Client, names: Iterable[str]) -> dict[str, InstanceTypeInfoTypeDef]:
    """Returns those types that the region has, by name. names: may have wildcards. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": sorted(set(names))}]
    )
    return {str(info["InstanceType"]): info for page in pages for info in page["InstanceTypes"]}


def describe_offered_zones(ec2: EC2Client, types: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Returns the zones that offer each type. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(types)}],
    )
    zones: dict[str, set[str]] = {name: set() for name in types}
    for page in pages:
        for offering in page["InstanceTypeOfferings"]:
            zones[str(offering["InstanceType"])].add(offering["Location"])
    return {name: frozenset(offered) for name, offered in zones.items()}


def type_error(config: ProvisionConfig, instance_type: str, problem: str, *, hint: str) -> ConfigError:
    """Returns the error for a type that is unavailable or unsuitable. It names the type's key in cluster.toml. Pure."""
    if instance_type == config.instance_type:
        return setting_error(config, "instance_type", problem, hint=hint)
    return ConfigError(f'[provision] instance_types, "{instance_type}": {problem}', hint=hint)


def render_gpus(info: Mapping[str, Any]) -> str:
    """Returns "4x NVIDIA T4", "1x 1/8 NVIDIA L4" for a part of a GPU, or "no GPU". Pure.

    info: of DescribeInstanceTypes.
    """
    return ", ".join(map(_render_gpu, info.get("GpuInfo", {}).get("Gpus", []))) or "no GPU"


def _render_gpu(gpu: GpuDeviceInfoTypeDef) -> str:
    size = Fraction(gpu.get("GpuPartitionSize", 1.0)).limit_denominator(64)
    part = f"{size} " if 0 < size < 1 else ""
    return f"{_count(gpu)}x {part}{gpu.get('Manufacturer', 'unknown')} {gpu.get('Name', 'GPU')}"


def _count(gpu: GpuDeviceInfoTypeDef) -> int:
    """Returns how many such GPUs a node has. EC2's Count is 0 for parts of a GPU."""
    return gpu.get("LogicalGpuCount") or gpu.get("Count") or 1


def _facts(name: str, info: InstanceTypeInfoTypeDef) -> TypeFacts:
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    return TypeFacts(
        name=name,
        architecture="x86_64" if "x86_64" in info["ProcessorInfo"]["SupportedArchitectures"] else "arm64",
        vcpus=info["VCpuInfo"]["DefaultVCpus"],
        gpus=render_gpus(info),
        gpu_makers=frozenset(gpu.get("Manufacturer", "unknown") for gpu in gpus),
        in_cluster_placement="cluster" in info.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
        efa=info.get("NetworkInfo", {}).get("EfaSupported", False),
        on_spot="spot" in info.get("SupportedUsageClasses", []),
    )


# --- images


class Image(Struct, frozen=True, kw_only=True):
    """A machine image. root_size_gib: the least size of its root volume in GiB.

    recipe: "arch=x86_64 gpu=none environment=... setup=...", of one that `cluster image bake` has made for `cluster`.
    """

    image_id: str
    name: str
    architecture: str
    state: str
    root_device: str
    root_size_gib: int
    created_at: datetime
    cluster: str = ""
    recipe: str = ""


# https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html
_DEEP_LEARNING = "Deep Learning*Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)*"
# https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/
_UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-*-server-*"
OWNERS = {
    "aws": ("amazon", "099720109477"),
    "aws-cn": ("amazon", "837727238323"),
    "aws-us-gov": ("amazon", "513442679011"),
}
"""The owners of the images of `ami = "auto"`, by partition: Amazon, and Canonical's account there. Not confirmed: the
accounts in China and GovCloud; with a wrong one, Ubuntu's images are not found there."""
TAG_BAKED = "cluster:baked"


def describe_images(clients: Clients, request: Request, types: Iterable[TypeFacts]) -> Mapping[str, Image]:
    """Returns the image for each type, by the type's name.

    The image exists, and fits the type and the volume. Raises ConfigError for the first type without
    one, and boto3's errors.
    """
    wanted, config = tuple(types), request.config
    if config.ami == "auto":
        images = _describe_newest(clients.ec2, config, wanted)
    elif config.ami == "baked":
        baked = describe_baked(clients.ec2)
        images = {facts.name: choose_baked(request, baked, facts) for facts in wanted}
    else:
        images = dict.fromkeys((facts.name for facts in wanted), _describe_named(clients.ec2, config))
    for facts in wanted:
        _refuse_unfit(config, facts, images[facts.name])
    return images


def describe_baked(ec2: EC2Client) -> tuple[Image, ...]:
    """Returns the baked images of this account and region, the newest first. Raises AwsError."""
    wanted: FilterTypeDef = {"Name": "tag-key", "Values": [TAG_BAKED]}
    with aws_errors("looking for baked images"):  # of this account: anybody can publish one with such a tag
        pages = ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=[wanted])
        listed = [image for page in pages for image in page["Images"]]
    return tuple(map(_read_image, sorted(listed, key=lambda image: image.get("CreationDate", ""), reverse=True)))


def find_words(facts: TypeFacts) -> str:
    """Returns the words of a recipe that depend on the type: an image has a driver for GPUs, or has not. Pure."""
    return f"arch={facts.architecture} gpu={','.join(sorted(facts.gpu_makers)) or 'none'}"


def choose_baked(request: Request, images: Sequence[Image], facts: TypeFacts) -> Image:
    """Returns the newest image that fits. images: the newest first. Raises ConfigError, which says what differs."""
    wanted = f"cluster={request.name} state=available {find_words(facts)} {request.recipe()}".split()
    newest = ""
    for image in images:
        words = {f"cluster={image.cluster}", f"state={image.state}", *image.recipe.split()}
        differing = [f"another {word.partition('=')[0]}" for word in wanted if word not in words]
        if not differing:
            return image
        newest = newest or f"; {image.name} ({image.image_id}) has {', '.join(differing)}"
    problem = f"{request.config.region} has no image for these settings and {facts.name}{newest}"
    raise setting_error(request.config, "ami", problem, hint='cluster image bake makes one; or set ami = "auto"')


def _describe_newest(ec2: EC2Client, config: ProvisionConfig, types: tuple[TypeFacts, ...]) -> dict[str, Image]:
    sources = {facts.name: (_choose_source(config, facts), facts.architecture) for facts in types}
    with bounded_pool() as pool:
        lookups = {
            source: pool.submit(_find_newest, ec2, config, *source) for source in dict.fromkeys(sources.values())
        }
    return {name: lookups[source].result() for name, source in sources.items()}


def _choose_source(config: ProvisionConfig, facts: TypeFacts) -> str:
    if not facts.gpu_makers:
        return _UBUNTU
    if facts.gpu_makers != {"NVIDIA"}:
        raise type_error(
            config,
            facts.name,
            f'has GPUs of {", ".join(sorted(facts.gpu_makers))}; ami = "auto" has an image only for NVIDIA\'s',
            hint='use a type with NVIDIA GPUs ("g4dn.xlarge", "g5.xlarge") or without GPUs ("c5.xlarge"), '
            "or set ami to an image with a driver for them",
        )
    return _DEEP_LEARNING


def _refuse_unfit(config: ProvisionConfig, facts: TypeFacts, image: Image) -> None:
    """Raises ConfigError when nodes of the type cannot use the image."""
    hint = 'set ami = "auto" in cluster.toml' if config.ami != "auto" else "set ami to an image id"
    if image.architecture != facts.architecture:
        problem = f"the image is for {image.architecture}, and {facts.name} is {facts.architecture}"
        raise setting_error(config, "ami", problem, hint=hint)
    if image.state != "available":
        problem = f"the image {image.image_id} is {image.state}, not available"
        raise setting_error(config, "ami", problem, hint=hint)
    if config.volume_size_gib < image.root_size_gib:
        problem = f"the image {image.image_id} needs {image.root_size_gib} GiB"
        hint = f"set volume_size_gib = {image.root_size_gib} or more"
        raise setting_error(config, "volume_size_gib", problem, hint=hint)


def _find_newest(ec2: EC2Client, config: ProvisionConfig, name: str, architecture: str) -> Image:
    """Returns the newest image of Amazon or Canonical with this name."""
    filters: list[FilterTypeDef] = [
        {"Name": "name", "Values": [name]},
        {"Name": "architecture", "Values": [architecture]},
        {"Name": "state", "Values": ["available"]},
    ]
    images = ec2.describe_images(Owners=list(OWNERS[partition_of(config.region)]), Filters=filters)["Images"]
    if not images:
        problem = f"{config.region} has no Ubuntu 22.04 for {architecture}"
        raise setting_error(config, "ami", problem, hint="set ami to an image id")
    return _read_image(max(images, key=lambda image: image["CreationDate"]))


def _describe_named(ec2: EC2Client, config: ProvisionConfig) -> Image:
    # A filter: for an unknown image, EC2 returns an empty list, not an error.
    named: FilterTypeDef = {"Name": "image-id", "Values": [config.ami]}
    images = ec2.describe_images(Filters=[named], IncludeDeprecated=True)["Images"]
    if not images:
        problem = f"{config.region} has no such image (an image belongs to one region)"
        raise setting_error(config, "ami", problem, hint='set ami = "auto" in cluster.toml, or correct region')
    return _read_image(images[0])


def _read_image(image: ImageTypeDef) -> Image:
    tags = {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])}
    return Image(
        image_id=image["ImageId"],
        name=image.get("Name", "without a name"),
        architecture=image.get("Architecture", "x86_64"),
        state=image.get("State", "available"),
        root_device=image.get("RootDeviceName", ""),  # only an unavailable image has none
        root_size_gib=_root_size_gib(image),
        created_at=datetime.fromisoformat(image["CreationDate"]),
        cluster=tags.get(TAG_NAME, ""),
        recipe=tags.get(TAG_BAKED, ""),
    )


def _root_size_gib(image: ImageTypeDef) -> int:
    return max(
        (
            mapping.get("Ebs", {}).get("VolumeSize", 0)
            for mapping in image.get("BlockDeviceMappings", [])
            if mapping.get("DeviceName") == image.get("RootDeviceName")
        ),
        default=0,
    )
