"""Resources besides instances that may cost money: spot requests, volumes, network interfaces and elastic addresses.

`up` launches instances whose volumes and interfaces are deleted with them. These remain if someone detaches them or
turns that off. `up` allocates no addresses: `down` only reports those with the cluster's tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws.clients import Clients, aws_errors, error_code
from provision.model import SHARED_ROLE, TAG_ROLE, ClusterState, count
from provision.plan import Context, Request, Step
from provision.resources.resource import ResourceKind, delete_each, look_by_tag, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

VOLUME = "volume"
INTERFACE = "network interface"
SPOT_REQUEST = "spot request"
PENDING_STATES = ("open", "active", "disabled")
"""States in which a request can still get an instance. `disabled` is a persistent request whose instance is stopped
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html)."""


def _list_volumes(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    """Lists volumes, without the head's volume (shared_volume.py)."""
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=filters)
    others = f"!(Tags[?Key=='{TAG_ROLE}' && Value=='{SHARED_ROLE}'])"
    return pages.search(f"Volumes[?State!='deleting' && State!='deleted' && {others}].VolumeId")


def _list_interfaces(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    pages = ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters)
    return pages.search("NetworkInterfaces[].NetworkInterfaceId")


def _list_addresses(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    return (address["AllocationId"] for address in ec2.describe_addresses(Filters=filters)["Addresses"])


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteOrphans(Step):
    """Delete volumes or network interfaces of the cluster that no instance uses."""

    kind: str
    ids: tuple[str, ...]

    def describe(self) -> str:
        return f"delete {count(len(self.ids), f'unattached {self.kind}')}"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((self.kind, self.ids),)

    def apply(self, context: Context) -> bool:
        """Deletes the resources, one call each. Returns False if none existed. Raises ClientError."""
        ec2 = context.clients.ec2

        def delete(each: str) -> None:
            if self.kind == VOLUME:
                ec2.delete_volume(VolumeId=each)
            else:
                ec2.delete_network_interface(NetworkInterfaceId=each)

        return delete_each(delete, self.ids, gone={"InvalidVolume.NotFound", "InvalidNetworkInterfaceID.NotFound"})


def _orphans(
    kind: str,
    ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]],
    command: str,
    *,
    actions: tuple[str, ...],
) -> ResourceKind[tuple[str, ...]]:
    """Returns a kind of which `down` deletes the `available` resources, which nothing uses."""

    def find(clients: Clients, request: Request) -> tuple[str, ...]:
        with aws_errors(f"looking for unattached {kind}s of cluster {request.name}"):
            free: FilterTypeDef = {"Name": "status", "Values": ["available"]}
            return tuple(sorted(ids(clients.ec2, [tagged(request.name), free])))

    def plan_down(state: ClusterState) -> tuple[Step, ...]:
        found: tuple[str, ...] = state.found.get(kind, ())
        return (DeleteOrphans(kind=kind, ids=found),) if found else ()

    look = look_by_tag(kind, ids, command)
    return ResourceKind(kind=kind, look=look, find=find, plan_down=plan_down, actions=actions)


# --- spot requests


@dataclass(frozen=True, kw_only=True, slots=True)
class SpotRequest:
    """A spot request of the cluster that may still get an instance, or has a live one."""

    request_id: str
    state: str
    instance_id: str | None


def _find_spot_requests(clients: Clients, request: Request) -> tuple[SpotRequest, ...]:
    with aws_errors(f"looking for spot requests of cluster {request.name}"):
        return _describe_spot_requests(clients.ec2, [tagged(request.name)])


def _describe_spot_requests(ec2: EC2Client, filters: list[FilterTypeDef]) -> tuple[SpotRequest, ...]:
    """Returns the requests, sorted by id. Makes one call per 1000."""
    pages = ec2.get_paginator("describe_spot_instance_requests")
    found = [
        SpotRequest(
            request_id=request["SpotInstanceRequestId"],
            state=request["State"],
            instance_id=request.get("InstanceId") or None,
        )
        for page in pages.paginate(Filters=[*filters, {"Name": "state", "Values": list(PENDING_STATES)}])
        for request in page["SpotInstanceRequests"]
    ]
    return tuple(sorted(found, key=lambda request: request.request_id))


def _list_spot_requests(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    return (request.request_id for request in _describe_spot_requests(ec2, filters))


def _plan_cancellation(state: ClusterState) -> tuple[Step, ...]:
    """Plans to cancel the requests that can still get an instance, before the instances end.

    This program's requests are one-time requests, which end with their instance.
    """
    known = {*(instance.instance_id for instance in (*state.nodes, *state.untrusted)), *state.ending}
    stale = tuple(
        request.request_id
        for request in SPOT_REQUESTS.found_in(state) or ()
        if request.state != "active" or request.instance_id not in known
    )
    return (CancelSpotRequests(request_ids=stale),) if stale else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelSpotRequests(Step):
    """Cancel spot requests that could still get an instance."""

    request_ids: tuple[str, ...]

    def describe(self) -> str:
        return f"cancel {count(len(self.request_ids), SPOT_REQUEST)}"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((SPOT_REQUEST, self.request_ids),)

    def apply(self, context: Context) -> bool:
        """Cancels the requests in one call. Returns False if none exists. Raises ClientError."""
        ec2 = context.clients.ec2
        try:
            ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=list(self.request_ids))
        except ClientError as error:
            if error_code(error) != "InvalidSpotInstanceRequestID.NotFound":
                raise
            # EC2 rejects the whole call for one unknown id: cancel those that EC2 still lists.
            listed = set(_list_spot_requests(ec2, [tagged(context.cluster)]))
            still = [request_id for request_id in self.request_ids if request_id in listed]
            if not still:
                return False
            ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=still)
        return True


VOLUMES = _orphans(VOLUME, _list_volumes, "delete-volume --volume-id", actions=("DescribeVolumes", "DeleteVolume"))
NETWORK_INTERFACES = _orphans(
    INTERFACE,
    _list_interfaces,
    "delete-network-interface --network-interface-id",
    actions=("DescribeNetworkInterfaces", "DeleteNetworkInterface"),
)
ADDRESSES: ResourceKind[None] = ResourceKind(
    kind="address",
    look=look_by_tag("address", _list_addresses, "release-address --allocation-id"),
    actions=("DescribeAddresses",),
)
SPOT_REQUESTS: ResourceKind[tuple[SpotRequest, ...]] = ResourceKind(
    kind=SPOT_REQUEST,
    look=look_by_tag(SPOT_REQUEST, _list_spot_requests, "cancel-spot-instance-requests --spot-instance-request-ids"),
    find=_find_spot_requests,
    plan_down=_plan_cancellation,
    actions=("DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"),
)
