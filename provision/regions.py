"""Finds the region of a cluster. EC2's tags decide; this machine's files only say which region to ask first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from foundation.errors import AwsError, ClusterError, NoCapacityError, NotInRegionError, QuotaError
from foundation.progress import Event, Report
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors
from provision.describe import describe_cluster
from provision.down import Receipt, down, prepare_down
from provision.files import ClusterFiles
from provision.membership import KnownInstances
from provision.model import ClusterState
from provision.plan import Request
from provision.resources.shared_volume import SHARED_VOLUME, find_shared_volumes

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

REGION_ERRORS = (NoCapacityError, NotInRegionError, QuotaError)
"""After these errors, another region may have capacity for the nodes."""
T = TypeVar("T")
MakeClients = Callable[[str], Clients]


def find_home(make_clients: MakeClients, regions: Sequence[str], *, name: str, noted: str | None) -> str | None:
    """Returns the region of the cluster `name`; None if no region has it.

    regions: in the order in which they are tried. noted: the region for which this machine has files of the cluster. It
    is asked first, and is the result if no region lists anything yet. If several regions have something of the cluster,
    returns the first one with instances, or else the first. Raises AwsError for a region that cannot be asked, unless
    another one has the cluster.
    """
    if noted is not None and _has_something(_ask(make_clients(noted).ec2, name)):
        return noted
    found, errors = find_remains(make_clients, [region for region in regions if region != noted], name=name)
    if found:
        return next((region for region, state in found.items() if _has_instances(state)), next(iter(found)))
    for error in errors.values():
        raise error
    return noted


def find_remains(
    make_clients: MakeClients, regions: Sequence[str], *, name: str
) -> tuple[dict[str, ClusterState], dict[str, AwsError]]:
    """Returns the regions that have something of the cluster `name`, and an error for each that cannot be asked."""
    found: dict[str, ClusterState] = {}
    errors: dict[str, AwsError] = {}
    with bounded_pool() as pool:
        lookups = {region: pool.submit(_ask, make_clients(region).ec2, name) for region in regions}
    for region, answer in lookups.items():
        try:
            found[region] = answer.result()
        except AwsError as error:
            errors[region] = AwsError(f"{region}: {error.message}", hint=error.hint)
    return {region: state for region, state in found.items() if _has_something(state)}, errors


def try_regions(
    regions: Sequence[str],
    *,
    attempt: Callable[[str], T],
    leave: Callable[[str], str | None],
    report: Report,
) -> T:
    """Tries one region after the other, and returns the result of the first successful attempt. Reports each failure.

    leave: deletes the resources that an attempt created in its region; if the cluster must stay there, returns the
    reason. Raises the error of an attempt that another region cannot fix, or after which the cluster must stay. If all
    attempts fail, raises an error that names the regions.
    """
    refused: list[ClusterError] = []
    for region, following in zip_longest(regions, regions[1:]):
        try:
            return attempt(region)
        except REGION_ERRORS as error:
            if len(regions) == 1:
                raise
            refused.append(error)
            words = error.message.replace("\n", "\n  ")
            report(Event(kind="warn", what=f"{region} cannot give the nodes: {words}"))
            stays = leave(region)
            if stays is not None:
                error.message += f"\nno other region is tried: {stays}"
                raise
            if following is not None:
                report(Event(kind="info", what=f"trying {following}"))
    kind = type(refused[0]) if len({type(error) for error in refused}) == 1 else NoCapacityError
    text = f"no region can give the nodes, and nothing was launched; tried {', '.join(regions)}"
    raise kind(text, hint=refused[0].hint)


def leave_region(
    clients: Clients, *, request: Request, files: ClusterFiles, report: Report, is_dry: bool = False
) -> str | None:
    """Deletes what `up` has created in a region that cannot give the nodes.

    If the cluster must stay in the region, because it has instances or a volume there, returns the reason and deletes
    nothing. is_dry: deletes nothing in any case. Raises AwsError if something cannot be deleted.
    """
    state = describe_cluster(clients.ec2, name=request.name, known=files.known_instances())
    if state.nodes or state.untrusted:
        return "the cluster has instances there"
    with aws_errors("looking for the cluster's volume"):
        volumes = find_shared_volumes(clients.ec2, name=request.name)
    if volumes:
        return f"the cluster's volume {volumes[0].volume_id} is there"
    if is_dry:
        return None
    prepared = prepare_down(clients, request=request, files=files, report=report)
    receipt = down(prepared, clients=clients, files=files, report=report) if prepared else Receipt(cluster=request.name)
    if receipt.leftovers:
        left = ", ".join(f"{each.kind} {each.resource_id}" for each in receipt.leftovers)
        raise AwsError(
            f"{clients.region}: not everything that was made there could be deleted: {left}",
            hint="cluster down deletes it; then run cluster up again",
        )
    return None


def _ask(ec2: EC2Client, name: str) -> ClusterState:
    """Returns the cluster in a region; of one without anything else, also the volume that `down` has kept."""
    state = describe_cluster(ec2, name=name, known=KnownInstances())
    if _has_something(state):
        return state
    return replace(state, found={SHARED_VOLUME.kind: find_shared_volumes(ec2, name=name)})


def _has_instances(state: ClusterState) -> bool:
    return bool(state.nodes or state.untrusted or state.ending)


def _has_something(state: ClusterState) -> bool:
    return _has_instances(state) or state.exists or bool(SHARED_VOLUME.found_in(state))
