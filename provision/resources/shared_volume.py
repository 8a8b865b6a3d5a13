"""The volume of [[volumes]] source = "head": `up` creates and attaches it, `down` deletes it unless keep = true.

It is in the head's zone, and only instances in that zone can use it: while it exists, nodes are launched there.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from foundation.errors import AwsError, ClusterError
from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, unless_refused
from provision.describe import describe_now
from provision.model import SHARED_ROLE, TAG_KEEP, TAG_ROLE, ClusterState
from provision.plan import Context, Request, Step, World
from provision.resources.orphans import VOLUMES
from provision.resources.resource import (
    RELEASE_TIMEOUT_S,
    KeptVolume,
    Leftovers,
    Resource,
    ResourceKind,
    find_tag,
    list_volumes,
    tag_new,
    tagged,
)
from provision.volumes.config import find_head_volume

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import CreateVolumeRequestTypeDef, VolumeTypeDef

KIND = "shared volume"
_IN_USE = frozenset({"VolumeInUse", "IncorrectState"})
ATTACH_TIMEOUT_S = 300.0
DEVICE = "/dev/sdf"
"""A name that AWS recommends for additional volumes; the system gives other names to NVMe devices
(https://docs.aws.amazon.com/ebs/latest/userguide/device_naming.html)."""
_NOT_YET = _IN_USE | {"IncorrectInstanceState", "InvalidInstanceID.NotFound", VOLUMES.gone}
"""AttachVolume's codes if the volume or the instance is not ready, or if not all of EC2's servers know it yet."""
_ANSWER_ATTACHED = ("attaching", "attached", "busy", "detaching")


class SharedVolume(Struct, frozen=True, kw_only=True):
    """A volume of the cluster for [[volumes]] source = "head".

    keep: `down` keeps it, by its tag or by cluster.toml; tagged_keep: by its tag. instance_id, attachment, device: the
    instance to which it is attached; attachment is EC2's state: attaching, attached, busy, detaching.
    """

    volume_id: str
    zone: str
    size_gib: int
    state: str
    keep: bool = False
    tagged_keep: bool = False
    instance_id: str | None = None
    attachment: str | None = None
    device: str = ""


# --- describe


def find_shared_volumes(ec2: EC2Client, *, name: str, keep: bool = False) -> tuple[SharedVolume, ...]:
    """Returns the cluster's volumes of this kind, by id. keep: cluster.toml asks to keep them. Raises AwsError."""
    with aws_errors(f"looking for the {KIND} of cluster {name}"):
        volumes = list_volumes(ec2, tagged(name), {"Name": f"tag:{TAG_ROLE}", "Values": [SHARED_ROLE]})
    found = [_read(volume, keep=keep) for volume in volumes]
    return tuple(sorted(found, key=lambda volume: volume.volume_id))


def _read(volume: VolumeTypeDef, *, keep: bool) -> SharedVolume:
    tagged_keep = find_tag(volume.get("Tags", []), TAG_KEEP) == "true"
    attached = [each for each in volume.get("Attachments", []) if each.get("State") in _ANSWER_ATTACHED]
    return SharedVolume(
        volume_id=volume["VolumeId"],
        zone=volume["AvailabilityZone"],
        size_gib=volume["Size"],
        state=volume["State"],
        keep=keep or tagged_keep,
        tagged_keep=tagged_keep,
        instance_id=attached[0].get("InstanceId") if attached else None,
        attachment=attached[0].get("State") if attached else None,
        device=attached[0].get("Device", "") if attached else "",
    )


def _find(clients: Clients, request: Request) -> tuple[SharedVolume, ...]:
    config = find_head_volume(request.volumes)
    return find_shared_volumes(clients.ec2, name=request.name, keep=config is not None and config.keep)


def _find_left(clients: Clients, request: Request) -> Leftovers:
    """Looks for the volumes. Those to keep do not count as left over."""
    found, of_volume = _find(clients, request), partial(VOLUMES.render_deletion, region=clients.region)
    return Leftovers(
        looked_for=(f"{KIND}s",),
        left=tuple(
            Resource(kind=KIND, resource_id=each.volume_id, deletion=of_volume(each.volume_id))
            for each in found
            if not each.keep
        ),
        kept=tuple(
            KeptVolume(
                volume_id=each.volume_id, zone=each.zone, size_gib=each.size_gib, deletion=of_volume(each.volume_id)
            )
            for each in found
            if each.keep
        ),
    )


def find_attached(clients: Clients, state: ClusterState) -> SharedVolume | None:
    """Returns the volume that is attached to one of the cluster's nodes, or None. Raises AwsError."""
    nodes = {node.instance_id for node in state.nodes}
    found = find_shared_volumes(clients.ec2, name=state.name)
    return next((one for one in found if one.instance_id in nodes and one.attachment == "attached"), None)


# --- plan


def choose_volume(world: World) -> SharedVolume | None:
    """Returns the existing volume that `up` uses; None if it creates one, or if cluster.toml asks for none. Pure.

    Raises ClusterError if there are several, or if the nodes are in another zone.
    """
    if find_head_volume(world.request.volumes) is None:
        return None
    found, nodes = SHARED_VOLUME.found_in(world.state) or (), world.state.nodes
    ids = {node.instance_id for node in nodes}
    attached = [volume for volume in found if volume.instance_id in ids]
    usable = attached or found
    if not usable:
        return None
    region = world.request.config.region
    if len(usable) > 1:
        listed = ", ".join(f"{volume.volume_id} ({volume.zone}, {volume.size_gib} GiB)" for volume in usable)
        raise ClusterError(
            f'cluster {world.request.name} has {len(usable)} volumes for [[volumes]] source = "head": {listed}',
            hint=f"delete those that you do not need: {VOLUMES.render_deletion('VOLUME', region=region)}",
        )
    [volume] = usable
    elsewhere = [node for node in nodes if node.zone != volume.zone]
    if elsewhere:
        raise ClusterError(
            f'the volume of [[volumes]] source = "head", {volume.volume_id}, is in {volume.zone}, and '
            f"{elsewhere[0].name} is in {elsewhere[0].zone}: a volume cannot move to another zone",
            hint="cluster resize 0, then cluster up, launches the nodes in its zone; or, if you do not need what is on "
            f"it: {VOLUMES.render_deletion(volume.volume_id, region=region)}",
        )
    return volume


def find_disks_gib(world: World) -> int:
    """Returns the size of all disks that the cluster will have in GiB, with the head's volume. Pure."""
    config, volume, existing = world.request.config, find_head_volume(world.request.volumes), choose_volume(world)
    extra = existing.size_gib if existing is not None else volume.size_gib if volume is not None else 0
    return config.nodes * config.volume_size_gib + extra


def _plan_on_nodes(world: World) -> tuple[Step, ...]:
    """Plans to create and attach the volume, and to write to its tag whether cluster.toml asks to keep it."""
    config, volume = find_head_volume(world.request.volumes), choose_volume(world)
    if config is None:
        return ()
    if volume is None:
        create = CreateSharedVolume(size_gib=config.size_gib, keep=config.keep, mount=config.mount)
        return (create, AttachSharedVolume(volume_id=None))
    steps: list[Step] = []
    if volume.tagged_keep != config.keep:
        steps.append(TagKeep(volume_id=volume.volume_id, keep=config.keep))
    is_here = volume.instance_id in {node.instance_id for node in world.state.nodes}
    if not is_here or volume.attachment != "attached":
        steps.append(AttachSharedVolume(volume_id=volume.volume_id))
    return tuple(steps)


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    found = SHARED_VOLUME.found_in(state) or ()
    untagged = [volume for volume in found if volume.keep and not volume.tagged_keep]
    steps: list[Step] = [TagKeep(volume_id=volume.volume_id, keep=True) for volume in untagged]
    deleted = [volume.volume_id for volume in found if not volume.keep]
    return (*steps, *SHARED_VOLUME.plan_deletion(*deleted, note=" and what is stored there"))


# --- apply


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateSharedVolume(Step):
    """Create the volume in the head's zone. mount: where nodes mount it, for the printed plan."""

    makes = KIND
    size_gib: int
    keep: bool
    mount: str

    def describe(self) -> str:
        return f"make a volume of {self.size_gib} GiB for {self.mount}"

    def details(self) -> Iterable[str]:
        yield f"gp3, encrypted; cluster down {'keeps' if self.keep else 'deletes'} it"

    def apply(self, context: Context) -> bool:
        """Creates the volume unless an earlier run did. Returns False if it existed.

        Raises ClientError, AwsError.
        """
        head = poll(lambda: describe_now(context).head, timeout_s=NOT_FOUND_TIMEOUT_S)  # EC2's lists may lag
        if head is None:
            raise AwsError("the head has ended", hint="cluster up")
        more = {TAG_KEEP: "true"} if self.keep else {}
        request: CreateVolumeRequestTypeDef = {
            "AvailabilityZone": head.zone,
            "Size": self.size_gib,
            "VolumeType": "gp3",
            "Encrypted": True,
            "TagSpecifications": tag_new(context, "volume", role=SHARED_ROLE, more=more),
        }
        # A repeated call, after an interrupted run, has the same token. AWS responds to it with the first volume,
        # even if that has been deleted: then use a new token.
        same = hashlib.sha256(f"{head.instance_id} {json.dumps(request, sort_keys=True)}".encode()).hexdigest()
        for token in (same, str(uuid.uuid4())):
            if found := find_shared_volumes(context.clients.ec2, name=context.cluster):
                context.volume_id = found[0].volume_id
                return False
            request["ClientToken"] = token
            made = context.clients.ec2.create_volume(**request)["VolumeId"]
            context.volume_id = context.made_volume_id = made
            if poll(partial(_find_one, context, made), timeout_s=NOT_FOUND_TIMEOUT_S) is not None:
                return True
        raise AwsError("AWS does not list the new volume", hint="run the command again")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachSharedVolume(Step):
    """Attach the volume to the head, unless a node has it. volume_id: None for the one that this plan creates."""

    volume_id: str | None

    def describe(self) -> str:
        return f"attach {'the volume' if self.volume_id is None else self.volume_id} to the head"

    def apply(self, context: Context) -> bool:
        """Attaches the volume, and waits until it is attached. Returns False if it already was.

        Raises ClientError, AwsError.
        """
        volume_id = self.volume_id or context.volume_id
        if volume_id is None:
            raise ValueError("the plan attaches a volume before it makes it")
        ec2 = context.clients.ec2
        changed = False
        seen: SharedVolume | None = None

        def check() -> bool | None:
            nonlocal changed, seen
            seen = _find_one(context, volume_id)
            if seen is None:
                return None
            instances = describe_now(context)
            live = {node.instance_id for node in instances.nodes}
            if seen.instance_id in live and seen.attachment in {"attached", "busy"}:
                return True
            if seen.state == "available" and instances.head is not None:
                attach = partial(
                    ec2.attach_volume, VolumeId=volume_id, InstanceId=instances.head.instance_id, Device=DEVICE
                )
                changed = unless_refused(_NOT_YET, attach) is not None or changed
            return None

        if poll(check, timeout_s=RELEASE_TIMEOUT_S if self.volume_id else ATTACH_TIMEOUT_S) is None:
            state = "not listed" if seen is None else seen.attachment or seen.state
            where = f" to {seen.instance_id}" if seen is not None and seen.instance_id is not None else ""
            raise AwsError(
                f"the volume {volume_id} could not be attached to the head: it is {state}{where}",
                hint="to continue: cluster up; to delete everything: cluster down",
            )
        return changed


@dataclass(frozen=True, kw_only=True, slots=True)
class TagKeep(Step):
    """Write to the volume's tag whether `down` keeps it."""

    volume_id: str
    keep: bool

    def describe(self) -> str:
        return f"mark {self.volume_id} as {'kept' if self.keep else 'deleted'} by cluster down"

    def apply(self, context: Context) -> bool:
        """Writes the tag. Always returns True. Raises ClientError."""
        value = "true" if self.keep else "false"
        context.clients.ec2.create_tags(Resources=[self.volume_id], Tags=[{"Key": TAG_KEEP, "Value": value}])
        return True


def delete_made_volume(context: Context) -> None:
    """Deletes, for the roll-back, the volume that this run created, which is empty. Raises ClientError, AwsError."""
    if context.made_volume_id is not None:
        SHARED_VOLUME.delete(context.clients.ec2, context.made_volume_id)
        context.made_volume_id = None


def _find_one(context: Context, volume_id: str) -> SharedVolume | None:
    found = find_shared_volumes(context.clients.ec2, name=context.cluster)
    return next((each for each in found if each.volume_id == volume_id), None)


SHARED_VOLUME: ResourceKind[tuple[SharedVolume, ...]] = ResourceKind(
    kind=KIND,
    deletion=VOLUMES.deletion,
    gone=VOLUMES.gone,
    in_use=_IN_USE,
    look=_find_left,
    find=_find,
    is_wanted=lambda request: find_head_volume(request.volumes) is not None,
    plan_on_nodes=_plan_on_nodes,
    plan_down=_plan_down,
    actions=("CreateVolume", "AttachVolume"),
)
