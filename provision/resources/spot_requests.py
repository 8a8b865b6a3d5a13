"""Spot requests of a cluster: each may cost money as long as it can still lead to an instance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws.clients import aws_errors, error_code
from provision.model import ClusterState, count
from provision.plan import Context, Step, Wanted
from provision.resources.resource import DryRun, ResourceKind, Scope, look_by_tag, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

KIND = "spot request"
PENDING_STATES = ("open", "active", "disabled")
"""States that a request leaves for an instance: `disabled` is a persistent one whose instance is stopped
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html)."""
STAND_IN = "sir-00000000"
_UNKNOWN = "InvalidSpotInstanceRequestID.NotFound"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpotRequest:
    """A spot request of the cluster that may still lead to an instance, or belongs to one that lives."""

    request_id: str
    state: str
    instance_id: str | None


def find_spot_requests(ec2: EC2Client, *, name: str) -> tuple[SpotRequest, ...]:
    """The cluster's requests that may still lead to an instance, or whose instance lives; by their ids.

    One call, and one more per further 1000. Raises AwsError.
    """
    with aws_errors(f"looking for spot requests of cluster {name}"):
        return _describe(ec2, [tagged(name)])


def _describe(ec2: EC2Client, filters: list[FilterTypeDef]) -> tuple[SpotRequest, ...]:
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


def _find(scope: Scope) -> tuple[SpotRequest, ...]:
    return find_spot_requests(scope.clients.ec2, name=scope.name)


def _list(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    return (request.request_id for request in _describe(ec2, filters))


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    """Those that can still lead to an instance. One that has its instance ends with that: ours are one-time requests.

    They go before the instances, or one could come behind the back of this plan.
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
    """Cancel spot requests that could still lead to an instance."""

    request_ids: tuple[str, ...]

    def describe(self) -> str:
        return f"cancel {count(len(self.request_ids), KIND)}"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((KIND, self.request_ids),)

    def apply(self, context: Context) -> bool:
        """Cancels them in one call. False: all are gone. Raises ClientError."""
        ec2 = context.clients.ec2
        try:
            ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=list(self.request_ids))
        except ClientError as error:
            if error_code(error) != _UNKNOWN:
                raise
            # One id that EC2 does not know makes it refuse all of them: cancel those that it still lists.
            listed = {request.request_id for request in find_spot_requests(ec2, name=context.cluster)}
            still = [request_id for request_id in self.request_ids if request_id in listed]
            if not still:
                return False
            ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=still)
        return True


def _dry_runs(ec2: EC2Client, wanted: Wanted) -> Iterator[DryRun]:
    if wanted.preflight is not None and any(option.market == "spot" for option in wanted.preflight.options):
        yield DryRun(
            action="ec2:CancelSpotInstanceRequests",
            call=ec2.cancel_spot_instance_requests,
            request={"SpotInstanceRequestIds": [STAND_IN]},
            stands_in=True,
        )


SPOT_REQUESTS: ResourceKind[tuple[SpotRequest, ...]] = ResourceKind(
    kind=KIND,
    look=look_by_tag(KIND, _list, "cancel-spot-instance-requests --spot-instance-request-ids"),
    find=_find,
    plan_down=_plan_down,
    dry_runs=_dry_runs,
    actions=("DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"),
)
