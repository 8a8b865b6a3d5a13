"""What the instance metadata service says of an instance: from moto's EC2 to paths and texts.

Source: EC2 user guide, "Instance metadata categories" and "Instance identity documents".
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import EC2Backend
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from sandbox.instances import SandboxInstance

META = "meta-data"
INSTANCE_TAGS = f"{META}/tags/instance"
CREDENTIALS_S = 6 * 3600
RENEW_S = 15 * 60  # new ones are there that long before the old ones end
PUBLIC_KEYS = f"{META}/public-keys"

Tree = Mapping[str, str]
"""The text at each path below /latest/; what lies above is a folder."""


class RoleCredentials:
    """The temporary credentials of each instance's role; S3 and STS know them. To be called under EC2's lock."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[dt.datetime, str]] = {}

    def read(self, instance: SandboxInstance, role_arn: str) -> str:
        """The document that IMDS shows, the same one until it has to be renewed."""
        now = dt.datetime.now(dt.UTC)
        ends, document = self._known.get((instance.id, role_arn), (now, ""))
        if (ends - now).total_seconds() > RENEW_S:
            return document
        ends = now + dt.timedelta(seconds=CREDENTIALS_S)
        role = sts_backends[DEFAULT_ACCOUNT_ID]["aws"].assume_role(
            region_name=str(instance.region_name),
            role_session_name=instance.id,
            role_arn=role_arn,
            policy="",
            duration=CREDENTIALS_S,
            external_id="",
        )
        document = json.dumps(
            {
                "Code": "Success",
                "LastUpdated": render_time(now),
                "Type": "AWS-HMAC",
                "AccessKeyId": role.access_key_id,
                "SecretAccessKey": role.secret_access_key,
                "Token": role.session_token,
                "Expiration": render_time(ends),
            },
            indent=2,
        )
        self._known[instance.id, role_arn] = (ends, document)
        return document


def render_time(time: dt.datetime) -> str:
    """As IMDS writes it: UTC, to the second. Pure."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_tree(backend: EC2Backend, instance: SandboxInstance, credentials: RoleCredentials) -> Tree:
    """All that IMDS says of an instance now, but for its user data. To be called under EC2's lock."""
    zone = str(instance.availability_zone)
    tree: dict[str, str | None] = {
        f"{META}/ami-id": instance.image_id,
        f"{META}/ami-launch-index": str(instance.ami_launch_index),
        f"{META}/ami-manifest-path": "(unknown)",
        f"{META}/block-device-mapping/ami": instance.root_device_name,
        f"{META}/block-device-mapping/root": instance.root_device_name,
        f"{META}/events/maintenance/history": "[]",
        f"{META}/events/maintenance/scheduled": "[]",
        f"{META}/hibernation/configured": "false",
        f"{META}/hostname": hostname_of(instance),
        f"{META}/instance-action": "none",
        f"{META}/instance-id": instance.id,
        f"{META}/instance-life-cycle": instance.lifecycle or "on-demand",
        f"{META}/instance-type": instance.instance_type,
        f"{META}/local-hostname": hostname_of(instance),
        f"{META}/local-ipv4": str(instance.private_ip),
        f"{META}/mac": mac_of(instance),
        f"{META}/placement/availability-zone": zone,
        f"{META}/placement/group-name": instance.placement.group_name or None,
        f"{META}/placement/region": instance.region_name,
        f"{META}/profile": "default-hvm",
        f"{META}/public-hostname": _public_hostname(instance),
        f"{META}/public-ipv4": instance.public_ip,
        f"{META}/reservation-id": _reservation_of(backend, instance),
        f"{META}/security-groups": "\n".join(group.name for group in _groups_of(instance)),
        f"{META}/services/domain": "amazonaws.com",
        f"{META}/services/partition": "aws",
        "dynamic/instance-identity/document": _identity_document(instance),
        **_interfaces(instance),
        **_interruption(instance),
        **_role(instance, credentials),
    }
    if instance.key_name:
        tree[f"{PUBLIC_KEYS}/0/openssh-key"] = f"{instance.public_key.strip()}\n"
    if instance.metadata_options.instance_metadata_tags == "enabled":
        for tag in instance.get_tags():
            tree[f"{INSTANCE_TAGS}/{tag['key']}"] = tag["value"]
    return {path: text for path, text in tree.items() if text is not None}


def list_folder(tree: Tree, folder: str, key_name: str | None) -> str | None:
    """What IMDS answers for a folder's path, without a slash at its end: its entries; None when there is none."""
    if folder == PUBLIC_KEYS and key_name and any(path.startswith(f"{PUBLIC_KEYS}/") for path in tree):
        return f"0={key_name}"
    prefix = f"{folder}/" if folder else ""
    names = {_entry(path.removeprefix(prefix)) for path in tree if path.startswith(prefix)}
    return "\n".join(sorted(names)) if names else None


def _entry(rest: str) -> str:
    name, slash, _ = rest.partition("/")
    # A role's name and a tag's key are shown without a slash even where one follows.
    return name + slash


def hostname_of(instance: SandboxInstance) -> str:
    """The name that the host has in its VPC."""
    return f"ip-{str(instance.private_ip).replace('.', '-')}.ec2.internal"


def mac_of(instance: SandboxInstance) -> str:
    """The hardware address of eth0."""
    return str(instance.nics[0].mac_address)


def _public_hostname(instance: SandboxInstance) -> str | None:
    if instance.public_ip is None:
        return None
    return f"ec2-{instance.public_ip.replace('.', '-')}.compute-1.amazonaws.com"


def _groups_of(instance: SandboxInstance) -> list[Any]:
    return sorted(instance.nics[0].group_set, key=lambda group: str(group.name))


def _reservation_of(backend: EC2Backend, instance: SandboxInstance) -> str | None:
    return next((key for key, value in backend.reservations.items() if instance in value.instances), None)


def _identity_document(instance: SandboxInstance) -> str:
    return json.dumps(
        {
            "accountId": instance.owner_id,
            "architecture": instance.architecture,
            "availabilityZone": instance.availability_zone,
            "billingProducts": None,
            "devpayProductCodes": None,
            "marketplaceProductCodes": None,
            "imageId": instance.image_id,
            "instanceId": instance.id,
            "instanceType": instance.instance_type,
            "kernelId": None,
            "pendingTime": render_time(instance.launch_time),
            "privateIp": str(instance.private_ip),
            "ramdiskId": None,
            "region": instance.region_name,
            "version": "2017-09-30",
        },
        indent=2,
    )


def _interfaces(instance: SandboxInstance) -> dict[str, str | None]:
    interface = instance.nics[0]
    subnet = interface.subnet
    vpc = instance.ec2_backend.get_vpc(subnet.vpc_id)
    values = {
        "device-number": "0",
        "interface-id": interface.id,
        "local-hostname": hostname_of(instance),
        "local-ipv4s": str(instance.private_ip),
        "mac": mac_of(instance),
        "owner-id": instance.owner_id,
        "public-hostname": _public_hostname(instance),
        "public-ipv4s": instance.public_ip,
        "security-group-ids": "\n".join(group.id for group in _groups_of(instance)),
        "security-groups": "\n".join(group.name for group in _groups_of(instance)),
        "subnet-id": subnet.id,
        "subnet-ipv4-cidr-block": subnet.cidr_block,
        "vpc-id": subnet.vpc_id,
        "vpc-ipv4-cidr-block": vpc.cidr_block,
        "vpc-ipv4-cidr-blocks": vpc.cidr_block,
    }
    return {f"{META}/network/interfaces/macs/{mac_of(instance)}/{name}": value for name, value in values.items()}


def _interruption(instance: SandboxInstance) -> dict[str, str | None]:
    announced = instance.interruption
    if announced is None:
        return {}
    at = render_time(announced.at)
    return {
        f"{META}/spot/instance-action": json.dumps({"action": "terminate", "time": at}),
        f"{META}/spot/termination-time": at,
        f"{META}/events/recommendations/rebalance": json.dumps({"noticeTime": render_time(announced.noticed)}),
    }


def _role(instance: SandboxInstance, credentials: RoleCredentials) -> dict[str, str | None]:
    if not instance.iam_instance_profile:
        return {}
    arn = instance.iam_instance_profile["Arn"]
    profile = next(_profiles_of(arn), None)
    if profile is None:
        return {}
    info = {
        "Code": "Success",
        "LastUpdated": render_time(dt.datetime.now(dt.UTC)),
        "InstanceProfileArn": arn,
        "InstanceProfileId": profile.id,
    }
    tree: dict[str, str | None] = {f"{META}/iam/info": json.dumps(info, indent=2)}
    for role in profile.roles:
        tree[f"{META}/iam/security-credentials/{role.name}"] = credentials.read(instance, role.arn)
    return tree


def _profiles_of(arn: str) -> Iterator[Any]:
    profiles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
    return (profile for profile in profiles if profile.arn == arn)
