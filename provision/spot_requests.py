"""Spot requests of a cluster: each may cost money as long as it can still lead to an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import aws_errors, error_code
from provision.context import Context
from provision.model import TAG_NAME, SpotRequest
from provision.steps import CancelSpotRequests

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PENDING_STATES = ("open", "active", "disabled")
"""States that a request leaves for an instance: `disabled` is a persistent one whose instance is stopped
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html)."""

_UNKNOWN = "InvalidSpotInstanceRequestID.NotFound"


def find_spot_requests(ec2: EC2Client, *, name: str) -> tuple[SpotRequest, ...]:
    """The cluster's requests that may still lead to an instance, or whose instance lives; by their ids.

    One call, and one more per further 1000. Raises AwsError.
    """
    filters = [{"Name": f"tag:{TAG_NAME}", "Values": [name]}, {"Name": "state", "Values": list(PENDING_STATES)}]
    pages = ec2.get_paginator("describe_spot_instance_requests")
    with aws_errors(f"looking for spot requests of cluster {name}"):
        found = [
            SpotRequest(
                request_id=request["SpotInstanceRequestId"],
                state=request["State"],
                instance_id=request.get("InstanceId") or None,
            )
            for page in pages.paginate(Filters=filters)  # type: ignore[arg-type]  # a literal, checked by AWS
            for request in page["SpotInstanceRequests"]
        ]
    return tuple(sorted(found, key=lambda request: request.request_id))


def cancel_spot_requests(step: CancelSpotRequests, context: Context) -> bool:
    """Cancels them in one call. False: all are gone. Raises ClientError."""
    ec2 = context.clients.ec2
    try:
        ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=list(step.request_ids))
    except ClientError as error:
        if error_code(error) != _UNKNOWN:
            raise
        # One id that EC2 does not know makes it refuse all of them: cancel those that it still lists.
        listed = {request.request_id for request in find_spot_requests(ec2, name=context.cluster)}
        still = [request_id for request_id in step.request_ids if request_id in listed]
        if not still:
            return False
        ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=still)
    return True
