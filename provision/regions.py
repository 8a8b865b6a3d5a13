"""Which of several regions a cluster is in. EC2's tags are the truth; this machine's files say where to look first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from foundation.errors import AwsError, ClusterError, NoCapacityError, NotInRegionError, QuotaError
from foundation.progress import Event, Report
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors
from provision.describe import describe_cluster, describe_nodes
from provision.down import Receipt, down, prepare_down
from provision.files import ClusterFiles
from provision.membership import KnownInstances
from provision.model import ClusterState
from provision.resources.shared_volume import find_shared_volumes

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

REGION_ERRORS = (NoCapacityError, NotInRegionError, QuotaError)
"""After these, another region may give the nodes."""
T = TypeVar("T")
MakeClients = Callable[[str], Clients]


def find_home(make_clients: MakeClients, regions: Sequence[str], *, name: str, noted: str | None) -> str | None:
    """The region of the cluster `name`; None if it is in none of them.

    regions: in the order in which they are tried. noted: where this machine has files of the cluster, which is asked
    first, and counts if EC2 does not list anything yet. If several regions have something of it, one with instances,
    or else the first. Raises AwsError for a region that cannot be asked, unless another one has the cluster.
    """
    if noted is not None and _has_something(_ask(make_clients(noted).ec2, name)):
        return noted
    others = [region for region in regions if region != noted]
    found: dict[str, ClusterState] = {}
    errors: list[AwsError] = []
    with bounded_pool() as pool:
        asked = {region: pool.submit(_ask, make_clients(region).ec2, name) for region in others}
    for region, answer in asked.items():
        try:
            found[region] = answer.result()
        except AwsError as error:
            errors.append(AwsError(f"{region}: {error.message}", hint=error.hint))
    having = [region for region, state in found.items() if _has_something(state)]
    if having:
        return next((region for region in having if _has_instances(found[region])), having[0])
    if errors:
        raise errors[0]
    return noted


def find_remains(make_clients: MakeClients, regions: Sequence[str], *, name: str) -> tuple[str, ...]:
    """The regions that have something of the cluster `name`. Raises AwsError."""
    with bounded_pool() as pool:
        asked = {region: pool.submit(_ask, make_clients(region).ec2, name) for region in regions}
    return tuple(region for region, answer in asked.items() if _has_something(answer.result()))


def try_regions(
    regions: Sequence[str],
    *,
    attempt: Callable[[str], T],
    leave: Callable[[str], str | None],
    report: Report,
) -> T:
    """The result of the first attempt that succeeds: one region after the other, each answer reported.

    leave: deletes what an attempt has made in its region; returns why the cluster must stay there, if it must.
    Raises the error of an attempt that no other region mends, and if all fail, one that names the regions.
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
    said = f"no region can give the nodes, and nothing was launched; tried {', '.join(regions)}"
    raise kind(said, hint=refused[0].hint)


def leave_region(clients: Clients, *, name: str, files: ClusterFiles, report: Report) -> str | None:
    """Delete what `up` has made in a region that cannot give the nodes; why not, if the cluster must stay there.

    It must stay if it has instances there, or a volume. Raises AwsError if something cannot be deleted.
    """
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    if state.nodes or state.untrusted:
        return "the cluster has instances there"
    with aws_errors("looking for the cluster's volume"):
        volumes = find_shared_volumes(clients.ec2, name=name)
    if volumes:
        return f"the cluster's volume {volumes[0].volume_id} is there"
    ending = prepare_down(clients, name=name, files=files, report=report)
    receipt = down(ending, clients=clients, files=files, report=report) if ending else Receipt(cluster=name)
    if receipt.leftovers:
        left = ", ".join(f"{each.kind} {each.resource_id}" for each in receipt.leftovers)
        raise AwsError(
            f"{clients.region}: not everything that was made there could be deleted: {left}",
            hint="cluster down deletes it; then run cluster up again",
        )
    return None


def _ask(ec2: EC2Client, name: str) -> ClusterState:
    return describe_nodes(ec2, name=name, known=KnownInstances())


def _has_instances(state: ClusterState) -> bool:
    return bool(state.nodes or state.untrusted or state.ending)


def _has_something(state: ClusterState) -> bool:
    return _has_instances(state) or state.exists
